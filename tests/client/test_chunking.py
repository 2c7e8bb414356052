from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.client.script import Script, Server, client, failed, ok, predictions
from tests.client.script import sizes as request_sizes
from tests.tables import table
from torchserve_client import ChunkingClient, ChunksFailed, InvalidPayload
from torchserve_client.chunking import Inputs, count_items, cut, estimate_sizes, join, select
from torchserve_client.transport import Request, Response


def as_lists(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: array.tolist() for name, array in inputs.items()}
    return inputs.tolist() if isinstance(inputs, np.ndarray) else list(inputs)


@st.composite
def inputs_of_items(draw: st.DrawFn) -> Inputs:
    """Lists of several kinds, an array, or arrays with equal lengths."""
    texts = draw(st.lists(st.sampled_from(("", "a", "한국", "x" * 20)), min_size=1, max_size=40))
    numbers = np.arange(len(texts) * 6).reshape(len(texts), 2, 3)
    kinds: list[Inputs] = [
        texts,
        [text.encode() for text in texts],
        [{"text": text, "top_k": 1} for text in texts],
        numbers,
        {"numbers": numbers, "strings": np.array(texts, object)[:, None], "flags": numbers[:, 0, 0] % 4 == 0},
    ]
    return draw(st.sampled_from(kinds))


@settings(max_examples=60)
@given(inputs_of_items(), st.integers(1, 50), st.integers(1, 200))
@example(["ab", "cd"], 2, 4)  # exactly max_bytes
def test_chunks_keep_both_limits_are_greedy_and_join_to_inputs(inputs: Inputs, max_items: int, max_bytes: int) -> None:
    every = estimate_sizes(inputs)
    chunks = cut(every, max_items, max_bytes)
    assert [index for items in chunks for index in items] == list(range(count_items(inputs)))
    assert as_lists(join([select(inputs, items) for items in chunks])) == as_lists(inputs)
    for chunk in chunks:
        assert 0 < len(chunk) <= max_items
        assert len(chunk) == 1 or sum(every[index] for index in chunk) <= max_bytes
    for before, after in pairwise(chunks):
        fits = sum(every[index] for index in before) + every[after.start] <= max_bytes
        assert len(before) == max_items or not fits


def test_sizes_are_bytes_of_utf8_and_of_base64(tmp_path: Path) -> None:
    (path := tmp_path / "a").write_bytes(bytes(10))
    sizes = estimate_sizes(["\ud55c", b"", b"a", b"abc", bytearray(4), path, {"b": "\ud55c", "c": [1]}, 12])
    assert [*sizes] == [3, 0, 4, 4, 8, 16, 8, 2]


@table(
    ({"a": np.zeros((3, 2)), "b": np.zeros(4)}, "first dimensions differ: a has 3, b has 4"),
    ({"a": np.zeros(3), "b": np.array(1.0)}, "arrays without a first dimension: b"),
    ({}, "at least one"),
    ({"a": [1, 2]}, "nothing else"),
    ("text", "not str"),
    (b"text", "not bytes"),
    (np.zeros((0, 2)), "no items"),
)
def test_inputs_that_cannot_be_cut_are_refused_before_anything_is_sent(inputs: Any, words: str) -> None:
    script = Script(ok([]))
    with ChunkingClient(client(script), 2) as chunking:
        for ask in (chunking.submit, chunking.infer_batch):
            with pytest.raises(InvalidPayload, match=words):
                ask("m", inputs)
    assert script.sent == []


def upper(request: Request) -> Response:
    return predictions(*(text.upper() for text in orjson.loads(request.body)["instances"]))


def test_infer_batch_joins_in_order_and_sends_the_options_with_every_chunk() -> None:
    server = Server(upper)
    texts = [f"text {number}" for number in range(10)]
    with ChunkingClient(client(server), 4) as chunking:
        assert chunking.infer_batch("m", texts, top_k=2) == [text.upper() for text in texts]
        assert [future.result() for future in chunking.submit("m", texts[:5])] == [
            ["TEXT 0", "TEXT 1", "TEXT 2", "TEXT 3"],
            ["TEXT 4"],
        ]
        assert chunking.infer_batch("m", []) == []
    assert sorted(request_sizes(server.sent[:3])) == [2, 4, 4]
    assert all(orjson.loads(request.body)["top_k"] == 2 for request in server.sent[:3])


def test_chunk_has_no_more_items_than_the_model_accepts_by_its_metadata() -> None:
    described = {"name": "m", "versions": ["1"], "inputs": [], "outputs": []}

    def answer(request: Request) -> Response:
        if request.method == "GET":
            return ok({"max_batch_size": 2} if request.url.endswith("/config") else described)
        return upper(request)

    server = Server(answer)
    with ChunkingClient(client(server)) as chunking:
        assert chunking.infer_batch("m", ["a", "b", "c"]) == ["A", "B", "C"]
    assert sorted(request_sizes([request for request in server.sent if request.method == "POST"])) == [1, 2]


def test_infer_batch_joins_arrays_along_their_first_axis() -> None:
    def answer(request: Request) -> Response:
        length = int(request.headers["Inference-Header-Content-Length"])
        tensor = orjson.loads(request.body[:length])["inputs"][0]
        head = orjson.dumps({"outputs": [{**tensor, "name": "y"}]})
        return Response(200, head + request.body[length:], {"Inference-Header-Content-Length": str(len(head))})

    numbers = np.arange(14).reshape(7, 2)
    with ChunkingClient(client(Server(answer)), 3) as chunking:
        result = chunking.infer_batch("m", {"x": numbers})
    np.testing.assert_array_equal(result["y"], numbers)


def test_one_failed_chunk_names_its_items_and_keeps_the_others() -> None:
    def answer(request: Request) -> Response:
        return failed(413, "BodyTooLarge", "too large") if b"bad" in request.body else upper(request)

    with (
        ChunkingClient(client(Server(answer)), 2) as chunking,
        pytest.raises(ChunksFailed, match=r"1 of 3 chunks failed, items 2\.\.3: too large") as raised,
    ):
        chunking.infer_batch("m", ["a", "b", "bad", "d", "e"])
    error = raised.value
    assert error.results == {range(0, 2): ["A", "B"], range(4, 5): ["E"]}
    assert (error.status, error.type, list(error.errors)) == (413, "BodyTooLarge", [range(2, 4)])


@pytest.mark.parametrize("answer", [predictions("A"), ok("A"), ok({"A": 1})])
def test_answer_of_another_length_than_its_chunk_is_a_failure(answer: Response) -> None:
    with ChunkingClient(client(Script(answer)), 2) as chunking, pytest.raises(ChunksFailed) as raised:
        chunking.infer_batch("m", ["a", "b"])
    assert list(raised.value.errors) == [range(0, 2)]


def test_each_limit_of_a_chunk_is_at_least_1_and_its_bytes_by_default_three_quarters_of_a_mebibyte() -> None:
    for limits in ({"max_items": 0}, {"max_bytes": 0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            ChunkingClient(client(Script()), **limits)
    with ChunkingClient(client(Server(upper)), 1, max_bytes=1) as chunking:
        assert chunking.infer_batch("m", ["a", "b"]) == ["A", "B"]
    server = Server(upper)
    with ChunkingClient(client(server), 64) as chunking:
        chunking.infer_batch("m", ["a" * 131_072] * 7)
    assert sorted(request_sizes(server.sent)) == [1, 6]
