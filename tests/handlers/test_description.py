"""A model's metadata, as a worker returns it, and the proofs in it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.archive_files import BUILD, Build
from handlers.errors import InvalidConfig
from handlers.precision.answers import make_proof
from handlers.proofs import Proof, read_proofs
from handlers.tasks.image_classification import ImageClassificationHandler
from handlers.tasks.question_answering import QuestionAnsweringHandler
from tests import tiny_models
from tests.handlers.cpu_graphs import GPU
from tests.handlers.serving import DoublingHandler, Patch, serve, started
from tests.handlers.tensor_models.models import columns, inquiry
from tests.hostile.target import STAGED
from tests.tables import table

ASKED = {"X-Model-Metadata": "1", "host": "localhost"}


def tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


def test_metadata_is_answered_beside_items_without_the_engine(tmp_path: Path) -> None:
    proof = {"measure": "vectors", "agreement": 0.998, "largest_change": 0.01, "samples": 20, "least": 0.98}
    proof |= {"detail": "", "broken": 0}
    (tmp_path / BUILD).write_text(Build("f1", "weights", False, {}, proofs={"int8": proof}).to_json())
    handler = started(DoublingHandler(), tmp_path, {"max_request_items": 10})
    handler.module.batches.clear()
    plain = {"host": "localhost"}
    rows: list[Any] = [b"2", {}, b"not a number", {"body": b"8"}]
    answers = serve(handler, rows, [plain, ASKED, plain, {"x-model-metadata": "yes"}])
    assert ([answer.status for answer in answers], answers[0].body) == ([200, 200, 422, 200], 4.0)
    assert answers[1].body == answers[3].body and "X-Model-Version" not in answers[0].headers
    assert answers[1].body == {
        **{"name": "model", "version": None, "platform": "torchserve_torch", "task": "serving", "mode": "classic"},
        **{"inputs": [tensor("number", "BYTES", -1, 1)], "outputs": [tensor("result", "BYTES", -1)]},
        **{"max_batch_size": 10, "max_request_items": 10, "options": {}, "accepts": ["application/json"]},
        **{"item": {"type": "object", "properties": {"number": {}}}},
        **{"api": None, "apis": [], "vector_space": None, "view": ""},
        **{"proofs": {"int8": proof}, "precision": "fp32", "device": "cpu"},
    }
    assert handler.module.batches == [[2.0]]


def test_device_is_the_engines_and_not_the_workers(tmp_path: Path, monkeypatch: Patch) -> None:
    """OpenVINO runs on the CPU of a worker that has a GPU."""
    monkeypatch.setattr("handlers.base._device", lambda _: GPU)
    task, folder, settings = STAGED["image_classification"](tmp_path)
    handler = started(task, folder, {**settings, "engine": "openvino"})
    assert serve(handler, [{}], [ASKED])[0].body["device"] == "cpu"


def test_tensors_have_the_names_that_the_archives_owner_gave(tmp_path: Path) -> None:
    names = {"inputs": {"question": "QUESTION", "context": "passage"}}
    names["outputs"] = {"answer": "output__0", "score": "output__1"}
    folder = tiny_models.staged(tmp_path, "bert", "question_answering", engine="torch")
    handler = started(QuestionAnsweringHandler(), folder, {"tensors": names, "engine": "torch"})
    answered = serve(handler, [{}], [ASKED])[0].body
    assert answered["inputs"] == [tensor("passage", "BYTES", -1, 1), tensor("QUESTION", "BYTES", -1, 1)]
    outputs = {"output__0": "BYTES", "output__1": "FP32", "start": "INT64", "end": "INT64"}
    assert answered["outputs"] == [tensor(name, datatype, -1, -1) for name, datatype in outputs.items()]
    asked = [inquiry(QUESTION=["Who?"], passage=["She is."]), inquiry(question=["Who?"], context=["She is."])]
    good, former = serve(handler, asked)
    assert list(columns(good)) == list(outputs)
    words = "The inputs must be named QUESTION, passage; options: align_to_words, max_answer_tokens, top_k."
    assert (former.status, former.body) == (400, {"error": words})


class AddingHandler(DoublingHandler):
    inputs = frozenset({"number", "other"})


@table(
    ({"inputs": {"x": "y"}}, "tensors.inputs: x: unknown; this task has number, other"),
    *(({"inputs": {"number": name}}, "tensors.inputs: names must be unique and not empty") for name in (" ", "other")),
    ({"outputs": {"result": "error"}}, "tensors.outputs: error: an option or the errors have this name; use another"),
)
def test_names_of_tensors_that_cannot_be_told_apart_are_rejected(names: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=words):
        started(AddingHandler(), tmp_path, {"tensors": names})


@table(
    *(("top-1", 0.99, 100, True, True), ("top-1", 0.95, 20, False, True), ("labels", 0.9, 20, False, False)),
    *(("top-1", 0.98, 100, False, False), ("vectors", 0.98, 20, False, False)),
    # One of few is no weak objection, and nothing compared is none to rely on.
    *(("labels", 0.875, 8, False, False), ("labels", 0.0, 0, False, False)),
)
def test_few_answers_may_differ_in_a_precision(
    measure: Any, agreement: float, samples: int, holds: bool, is_enough: bool
) -> None:
    found = Proof(measure, agreement, None, samples, 0.99)
    assert (found.holds, found.is_enough) == (holds, is_enough)
    assert read_proofs({"bf16": found.to_json()}) == {"bf16": found}


def test_proof_says_that_it_compared_nothing_how_weak_it_is_and_what_is_broken() -> None:
    nothing = Proof("top-1", 0.0, 0.01, 0, 0.99, "20 near ties left out")
    assert str(nothing).startswith("top-1: nothing compared, since no answer in fp32 is clear, largest change 0.0100")
    assert "show 0.85 at most; --validate with 300 or more" in Proof("top-1", 1.0, 0.01, 20, 0.99).weakness
    assert not Proof("top-1", 1.0, 0.01, 300, 0.99).weakness
    rows = [np.array([[0.9, 0.1]])] * 2
    broken = make_proof(ImageClassificationHandler.answer_kind, rows, [rows[0], rows[1] * np.nan], least=0.0)
    assert (broken.holds, broken.is_enough, broken.broken) == (False, False, 1)
    for wrong in ({"agreement": "1"}, {"agreement": math.nan}, {"samples": None}, {"largest_change": "x"}, {"x": 1}):
        with pytest.raises(ValueError, match=r"other (fields|values)|format code"):
            read_proofs({"bf16": {**broken.to_json(), **wrong}})
