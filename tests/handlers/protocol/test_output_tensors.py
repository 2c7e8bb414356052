"""Results of the tasks to tensors, as tritonclient reads them."""

import json
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from handlers.errors import ItemError
from handlers.protocol.open_inference import Inference, Model
from handlers.protocol.output_tensors import (
    LABELS,
    Documents,
    OutputTensors,
    Ranked,
    Texts,
    Vectors,
    from_mapping,
    one_or_many,
)
from handlers.protocol.responses import Reply

BROKEN = ItemError(422, "CorruptInput", "Broken.")


def read(reply: Reply) -> triton.InferResult:
    length = reply.headers.get("Inference-Header-Content-Length")
    assert reply.content_type == ("application/json" if length is None else "application/octet-stream")
    return triton.InferenceServerClient.parse_response_body(reply.body, header_length=length and int(length))


def packed(outputs: OutputTensors, results: list[Any], *, is_binary: bool = False) -> Reply:
    return Inference(Model("model", "2.0", outputs), "seven", is_binary=is_binary).pack(results)


@pytest.mark.parametrize("is_binary", [True, False])
def test_item_that_failed_has_an_empty_row_and_its_error(is_binary: bool) -> None:
    vectors = [np.array([0.1, -2], np.float32), BROKEN, np.array([3, 4], np.float32)]
    reply = packed(Vectors("embedding"), vectors, is_binary=is_binary)
    result = read(reply)
    assert reply.status == 200
    expected = np.array([[0.1, -2], [np.nan, np.nan], [3, 4]], np.float32)
    np.testing.assert_array_equal(result.as_numpy("embedding"), expected, strict=True)
    first, error, last = result.as_numpy("error")
    assert (json.loads(error), len(first), len(last)) == (BROKEN.to_json(), 0, 0)
    response = result.get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("seven", "model", "2.0")


@pytest.mark.parametrize(
    ("outputs", "results", "expected"),
    [
        (
            Ranked(LABELS),
            [[{"label": "좋다", "score": 0.5}, {"label": "b", "score": 0.25}], [{"label": "c", "score": 1.0}], []],
            {"label": [["좋다", "b"], ["c", ""], ["", ""]], "score": [[0.5, 0.25], [1, np.nan], [np.nan, np.nan]]},
        ),
        (Ranked(LABELS), [[], []], {"label": [[], []], "score": [[], []]}),
        (Ranked(LABELS, from_mapping), [{"cat": 0.75}], {"label": [["cat"]], "score": [[0.75]]}),
        (
            Ranked({"answer": object, "start": np.int64}, one_or_many),
            [{"answer": "a", "start": 3}, [{"answer": "b", "start": 5}, {"answer": "c", "start": 0}]],
            {"answer": [["a", ""], ["b", "c"]], "start": [[3, -1], [5, 0]]},
        ),
        (
            Texts("translation_text"),
            [{"translation_text": "één"}, {"translation_text": ""}],
            {"translation_text": ["één", ""]},
        ),
        (Documents(), [{"a": [1, None]}, "é"], {"result": ['{"a":[1,null]}', '"é"']}),
    ],
)
def test_results_become_tensors(outputs: OutputTensors, results: list[Any], expected: dict[str, Any]) -> None:
    result = read(packed(outputs, results, is_binary=True))
    assert [output["name"] for output in result.get_response()["outputs"]] == list(outputs.names) == list(expected)
    for name, values in expected.items():
        array = result.as_numpy(name)
        if array.dtype == object:
            array = np.vectorize(bytes.decode, otypes=[object])(array)
        np.testing.assert_array_equal(array, np.array(values, array.dtype), strict=True)


def test_request_whose_items_all_failed_has_the_first_error() -> None:
    reply = packed(Documents(), [BROKEN, ItemError(400, "EmptyInput", "Empty.")])
    assert (reply.status, json.loads(reply.body)) == (422, {"error": "Broken."})


@pytest.mark.parametrize(
    ("outputs", "result"),
    [
        (Vectors("embedding"), np.array([np.nan], np.float32)),
        (Ranked(LABELS), [{"label": "a", "score": float("inf")}]),
        (Documents(), float("nan")),
    ],
)
def test_result_that_is_no_number_is_an_error(outputs: OutputTensors, result: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        packed(outputs, [result])
