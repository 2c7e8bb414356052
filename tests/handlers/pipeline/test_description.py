"""What a model says of itself, as a worker answers it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from handlers.archive_files import BUILD, Build, sums
from handlers.base import BatchHandler
from handlers.errors import InvalidConfig
from handlers.tasks.image_classification import ImageClassificationHandler
from handlers.tasks.language_id import LanguageIdHandler
from handlers.tasks.question_answering import QuestionAnsweringHandler
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.tasks.text_classification import TextClassificationHandler
from handlers.tasks.token_classification import TokenClassificationHandler
from handlers.tasks.tokenization import TokenizationHandler
from handlers.tasks.translation import TranslationHandler
from tests import tiny_models, tiny_seq2seq
from tests.handlers.open_inference import columns, inquiry
from tests.handlers.serving import DoublingHandler, serve, started
from tests.handlers.tasks import translating

ASKED = {"X-Model-Metadata": "1", "host": "localhost"}


def metadata(handler: BatchHandler[Any, Any]) -> Any:
    (answer,) = serve(handler, [{}], [ASKED])
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    return answer.body


def tensor(name: str, datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


TEXT = tensor("text", "BYTES", -1, 1)
RANKED = [tensor("label", "BYTES", -1, -1), tensor("score", "FP32", -1, -1)]


def test_metadata_is_answered_beside_items_without_the_engine(tmp_path: Path) -> None:
    handler = started(DoublingHandler(), tmp_path, {"max_instances": 10})
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
        "max_instances": 10,
        "options": {},
        "accepts": ["application/json"],
        "proofs": {},
        "precision": "fp32",
    }
    assert handler.module.batches == [[2.0]]


class Case:
    """A task on what its archive holds, and what it is to say of itself."""

    def __init__(self, handler: type[BatchHandler[Any, Any]], stage: Any, **expected: Any) -> None:
        self.handler, self.stage, self.expected = handler, stage, expected


def tiny(task: str, **options: Any) -> Callable[[Path], Path]:
    return lambda folder: tiny_models.staged(folder, "bert", task, **options)


def translation_archive(folder: Path) -> Path:
    (folder / "checkpoint").mkdir()
    checkpoint = tiny_seq2seq.marian(folder / "checkpoint")
    return translating.staged("tiny", checkpoint, folder, translating.SETTINGS)


TASKS = {
    "image_classification": Case(
        ImageClassificationHandler,
        "mobilenet-v2",
        inputs=[tensor("image", "BYTES", -1, 1)],
        outputs=RANKED,
        platform="torchserve_openvino",
        accepts=["image/*", "application/json"],
        max_batch_size=64,
    ),
    "sentence_embedding": Case(
        SentenceEmbeddingHandler,
        "sentence-embedding",
        inputs=[TEXT],
        outputs=[tensor("embedding", "FP32", -1, 384)],
        platform="torchserve_openvino",
        accepts=["text/plain", "application/json"],
        options={},
        max_batch_size=256,
    ),
    "language_id": Case(
        LanguageIdHandler,
        "language-id",
        inputs=[TEXT],
        outputs=RANKED,
        platform="torchserve_fasttext",
        max_batch_size=1024,
    ),
    "tokenization": Case(
        TokenizationHandler,
        "tokenizer",
        inputs=[TEXT],
        outputs=[tensor("input_ids", "INT64", -1, -1), tensor("attention_mask", "INT64", -1, -1)],
        platform="torchserve_function",
        accepts=["text/plain", "application/json"],
        max_batch_size=256,
    ),
    "text_classification": Case(
        TextClassificationHandler,
        tiny("text_classification", labels=("bad", "fair", "good")),
        inputs=[TEXT],
        outputs=RANKED,
    ),
    "token_classification": Case(
        TokenClassificationHandler,
        tiny("token_classification"),
        inputs=[TEXT],
        outputs=[tensor("result", "BYTES", -1)],
    ),
    "question_answering": Case(
        QuestionAnsweringHandler,
        tiny("question_answering"),
        inputs=[tensor("context", "BYTES", -1, 1), tensor("question", "BYTES", -1, 1)],
        outputs=[
            tensor("answer", "BYTES", -1, -1),
            tensor("score", "FP32", -1, -1),
            tensor("start", "INT64", -1, -1),
            tensor("end", "INT64", -1, -1),
        ],
        accepts=["application/json"],
    ),
    "translation": Case(
        TranslationHandler,
        translation_archive,
        inputs=[TEXT],
        outputs=[tensor("translation_text", "BYTES", -1)],
        platform="torchserve_ctranslate2",
    ),
}
# What they cannot be served without.
SETTINGS: dict[str, dict[str, Any]] = {
    "image_classification": {"arch": "mobilenet_v2"},
    "translation": translating.SETTINGS,
}


@pytest.mark.parametrize("task", TASKS)
def test_metadata_of_every_task_is_that_of_its_loaded_model(
    task: str, staged_example: Callable[[str], Path], tmp_path: Path
) -> None:
    case = TASKS[task]
    folder = staged_example(case.stage) if isinstance(case.stage, str) else case.stage(tmp_path)
    told = metadata(started(case.handler(), folder, SETTINGS.get(task, {})))
    assert {name: told[name] for name in case.expected} == case.expected
    assert (told["task"], told["mode"]) == (task, "classic")
    assert all(tensor["shape"][0] == -1 for tensor in told["inputs"] + told["outputs"])


def test_metadata_tells_how_near_each_precision_was_proven(tmp_path: Path) -> None:
    folder = tiny("sentence_embedding")(tmp_path)
    proof = {"measure": "cosine", "agreement": 0.998, "largest_change": 0.01, "samples": 20, "least": 0.99}
    build = Build("print", "weights", is_folder=False, files={}, proofs={"int8": proof})
    (folder / BUILD).write_text(replace(build, files=sums(packed(folder))).to_json())
    assert metadata(started(SentenceEmbeddingHandler(), folder, {}))["proofs"] == {"int8": proof}


def packed(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def test_metadata_of_padded_texts_promises_the_rows_that_fit(staged_example: Callable[[str], Path]) -> None:
    settings = {"padding": "max_length", "max_request_tokens": 1000}  # of 256 tokens each
    handler = started(SentenceEmbeddingHandler(), staged_example("sentence-embedding"), settings)
    assert metadata(handler)["max_batch_size"] == 3
    answers = serve(handler, [inquiry(text=["a"] * 3), inquiry(text=["a"] * 4)])
    assert [answer.status for answer in answers] == [200, 413]


def test_tensors_have_the_names_that_the_archives_owner_gave(tmp_path: Path) -> None:
    names = {
        "inputs": {"question": "QUESTION", "context": "passage"},
        "outputs": {"answer": "output__0", "score": "output__1"},
    }
    handler = started(QuestionAnsweringHandler(), tiny("question_answering")(tmp_path), {"tensors": names})
    told = metadata(handler)
    assert [each["name"] for each in told["inputs"]] == ["passage", "QUESTION"]
    assert [each["name"] for each in told["outputs"]] == ["output__0", "output__1", "start", "end"]
    good, former = serve(
        handler,
        [inquiry(QUESTION=["Who?"], passage=["She is."]), inquiry(question=["Who?"], context=["She is."])],
    )
    assert list(columns(good)) == ["output__0", "output__1", "start", "end"]
    assert (former.status, former.body) == (
        400,
        {"error": "The inputs must be named QUESTION, passage; options: align_to_words, max_answer_tokens, top_k."},
    )


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ({"inputs": {"text": "number"}}, "tensors.inputs: text: this task has number"),
        ({"outputs": {"result": "error"}}, "tensors.outputs: error is taken already"),
        ({"input": {}}, "tensors: input: Unexpected keyword argument"),
        ({"inputs": {"number": 7}}, r"tensors: inputs.number: Input should be a valid string"),
        (["number"], "tensors: a mapping of names to values is needed"),
    ],
)
def test_load_names_of_tensors_that_mean_nothing_are_refused(names: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        started(DoublingHandler(), tmp_path, {"tensors": names})
