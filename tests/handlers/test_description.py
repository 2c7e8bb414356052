"""A model's metadata, as a worker returns it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from handlers.archive_files import BUILD, Build
from handlers.base import BatchHandler
from handlers.tasks.question_answering import QuestionAnsweringHandler
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from tests import tiny_models
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import DoublingHandler, serve, started

ASKED = {"X-Model-Metadata": "1", "host": "localhost"}


def metadata(handler: BatchHandler[Any, Any]) -> Any:
    (answer,) = serve(handler, [{}], [ASKED])
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    return answer.body


def tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


def test_metadata_is_answered_beside_items_without_the_engine(tmp_path: Path) -> None:
    proof = {
        "measure": "vectors",
        "agreement": 0.998,
        "largest_change": 0.01,
        "samples": 20,
        "least": 0.98,
        "detail": "",
        "broken": 0,
    }
    (tmp_path / BUILD).write_text(Build("f1", "weights", False, {}, proofs={"int8": proof}).to_json())
    handler = started(DoublingHandler(), tmp_path, {"max_request_items": 10})
    handler.module.batches.clear()
    plain = {"host": "localhost"}
    rows: list[Any] = [b"2", {}, b"not a number", {"body": b"8"}]
    answers = serve(handler, rows, [plain, ASKED, plain, {"x-model-metadata": "yes"}])
    assert [answer.status for answer in answers] == [200, 200, 422, 200]
    assert answers[0].body == 4.0
    assert answers[1].body == answers[3].body
    assert answers[1].body == {
        "name": "model",
        "version": None,
        "platform": "torchserve_torch",
        "task": "serving",
        "mode": "classic",
        "inputs": [tensor("number", "BYTES", -1, 1)],
        "outputs": [tensor("result", "BYTES", -1)],
        "max_batch_size": 10,
        "max_request_items": 10,
        "options": {},
        "accepts": ["application/json"],
        "proofs": {"int8": proof},
        "precision": "fp32",
        "device": "cpu",
    }
    assert handler.module.batches == [[2.0]]


@pytest.mark.builds
def test_device_is_the_engines_and_not_the_workers(
    staged_example: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO runs on the CPU of a worker that has a GPU."""
    monkeypatch.setattr("handlers.base._device", lambda _: torch.device("cuda", 0))
    handler = started(SentenceEmbeddingHandler(), staged_example("sentence-embedding"), {"engine": "openvino"})
    assert metadata(handler)["device"] == "cpu"


def test_tensors_have_the_names_that_the_archives_owner_gave(tmp_path: Path) -> None:
    names = {
        "inputs": {"question": "QUESTION", "context": "passage"},
        "outputs": {"answer": "output__0", "score": "output__1"},
    }
    folder = tiny_models.staged(tmp_path, "bert", "question_answering", engine="torch")
    handler = started(QuestionAnsweringHandler(), folder, {"tensors": names, "engine": "torch"})
    answered = metadata(handler)
    assert answered["inputs"] == [tensor("passage", "BYTES", -1, 1), tensor("QUESTION", "BYTES", -1, 1)]
    assert answered["outputs"] == [
        tensor("output__0", "BYTES", -1, -1),
        tensor("output__1", "FP32", -1, -1),
        tensor("start", "INT64", -1, -1),
        tensor("end", "INT64", -1, -1),
    ]
    good, former = serve(
        handler,
        [inquiry(QUESTION=["Who?"], passage=["She is."]), inquiry(question=["Who?"], context=["She is."])],
    )
    assert list(columns(good)) == ["output__0", "output__1", "start", "end"]
    assert (former.status, former.body) == (
        400,
        {"error": "The inputs must be named QUESTION, passage; options: align_to_words, max_answer_tokens, top_k."},
    )
