"""Tasks of each modality on TorchServe and in one process: every request gets its own answer in any batch."""

import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from PIL import Image

from deploy.nodes.run.server import Server
from load.expect import matches
from tests import tiny_detector, tiny_image_text, tiny_models, tiny_segmenter, tiny_seq2seq
from tests.e2e.conftest import ADAPTIVE, MOBILENET, Make, logged, send, send_together, url, vary
from tests.hosts import run_hosts
from tests.photographs import MOBILENET_TOP_1, jpeg, path, photograph

# The difference between unbatched and batched answers in fp32 is the order of the sums. Answers of two items differ by
# far more, which the tests check.
ALIKE = 2e-3
# tests/handlers/tasks has each task in any batch, and tests/nightly/test_serve_lock.py each in one process.
ON_TORCHSERVE = ("image_classification", "sentence_embedding", "tensors")
IN_ONE_PROCESS = ("image_text_embedding", "translation")
# Bounds of examples/tabular/model/bands.json.
BANDS = (120, 200)
TEXTS = tuple(text.encode() for text in (*tiny_models.TEXTS[:1], *tiny_models.TEXTS[3:8], "Who wrote the letter?"))
BAD_IMAGES = {b"canary": (415, "UnsupportedMedia"), photograph("chelsea")[:30_000]: (422, "CorruptInput")}
BAD_TEXTS = {b"canary \xff\xfe": (400, "InvalidText"), b" \n": (400, "EmptyInput")}


def documents(**fields: Sequence[str]) -> tuple[bytes, ...]:
    rows = zip(*fields.values(), strict=True)
    return tuple(json.dumps(dict(zip(fields, row, strict=True))).encode() for row in rows)


@dataclass(frozen=True)
class Case:
    """A task's model, and what it is sent."""

    model: str
    good: Sequence[bytes]
    bad: Mapping[bytes, tuple[int, str]]
    checkpoint: Callable[[Path], Path] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    known: Sequence[Any] = ()
    read: Callable[[Any], Any] = lambda body: body


def tiny(task: str) -> Callable[[Path], Path]:
    return lambda folder: tiny_models.checkpoint(folder, "distilbert", task)


def reranker(folder: Path) -> Path:
    """Write a cross-encoder whose scores are its logits, so that they differ."""
    named = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    return tiny_models.checkpoint(folder, "bert", "reranking", ("relevance",), **named)


CONTEXT = "Anna Berg kept the inn at Lindau. On the tenth day Tomas Okafor crossed the bridge with two mules. "
QUESTIONS = ("Who kept the inn?", "Where did the mules go?", "When was the wall built?", "How long was it shut?")
LANGUAGES = {
    "en": "Good morning, how are you?",
    "fr": "Il fait beau aujourd'hui et nous allons à la plage.",
    "ko": "기준금리를 동결했다.",
    "de": "Die letzte Fähre fährt um neunzehn Uhr.",
}
CASES = {
    "image_classification": Case(
        MOBILENET,
        [photograph(name) for name in MOBILENET_TOP_1],
        {**BAD_IMAGES, b"": (400, "EmptyInput"), b'{"canary": "AAAA"}': (400, "InvalidBody")},
        known=[*MOBILENET_TOP_1.values()],
    ),
    "object_detection": Case(
        "object-detection",
        [photograph(name) for name in MOBILENET_TOP_1],
        {**BAD_IMAGES, b'{"b64": "AAAA", "threshold": 2}': (400, "InvalidOption")},
        tiny_detector.detector,
        {"threshold": 0.5, "scaled_decode": False},
        read=lambda body: [each["score"] for each in body],
    ),
    "image_segmentation": Case(
        "image-segmentation",
        # Of one shape, so that they share a micro-batch.
        [jpeg(Image.open(path(name)).resize((300, 200))) for name in MOBILENET_TOP_1],
        {**BAD_IMAGES, b'{"b64": "AAAA", "masks": "polygons"}': (400, "InvalidOption")},
        tiny_segmenter.lraspp,
        {"resize_size": 128},
        read=lambda body: [each["score"] for each in body["segments"]],
    ),
    "image_text_embedding": Case(
        "image-text-embedding",
        [*(photograph(name) for name in MOBILENET_TOP_1), b'{"text": "plum cake"}', b'{"text": "the letter"}'],
        {**BAD_IMAGES, b'{"text": "canary", "dimensions": 5}': (400, "InvalidOption")},
        tiny_image_text.clip,
        {"scaled_decode": False},
    ),
    # White space has a vector, as with OpenAI; no text at all is an error.
    "sentence_embedding": Case(
        "sentence-embedding", (*TEXTS, b" \n"), {b"canary \xff\xfe": (400, "InvalidText"), b"": (400, "EmptyInput")}
    ),
    "text_classification": Case(
        "text-classification", TEXTS, BAD_TEXTS, tiny("text_classification"), {"top_k": None}
    ),
    "token_classification": Case(
        "token-classification", TEXTS, BAD_TEXTS, tiny("token_classification"), {"aggregation": "none"}
    ),
    "question_answering": Case(
        "question-answering",
        documents(question=QUESTIONS, context=[CONTEXT * count for count in (1, 3, 2, 4)]),
        {b'{"question": "canary"}': (400, "InvalidBody"), b"canary": (400, "InvalidBody")},
        tiny("question_answering"),
    ),
    "reranking": Case(
        "reranking",
        documents(query=QUESTIONS, document=[CONTEXT * count for count in (1, 3, 2, 4)]),
        {b'{"query": "canary"}': (400, "InvalidBody"), b'{"query": "canary", "document": " "}': (400, "EmptyInput")},
        reranker,
    ),
    # Random weights end no sentence, and their texts differ by rounding: only the languages are compared.
    "translation": Case(
        "translate-any",
        [text.encode() for language, text in LANGUAGES.items() if language != "en"],
        {**BAD_TEXTS, "La vetero estas tre bela hodiaŭ, ĉu ne?".encode(): (400, "UnknownLanguage")},
        tiny_seq2seq.m2m100,
        {"max_new_tokens": 8, "precision": "auto"},
        known=[language for language in LANGUAGES if language != "en"],
        read=lambda body: body["src_lang"],
    ),
    "language_id": Case(
        "language-id",
        [text.encode() for text in LANGUAGES.values()],
        BAD_TEXTS,
        known=[*LANGUAGES],
        read=lambda body: body[0]["label"],
    ),
    "tokenization": Case("tokenizer", TEXTS, BAD_TEXTS),
    "tensors": Case(
        "batch2",
        [json.dumps({"inputs": {"INPUT_1": [[number], [-number]]}}).encode() for number in range(6)],
        {b'{"inputs": {"INPUT_1": [[1], [2], [3]]}}': (400, "BatchTooLarge"), b'{"canary": 1}': (400, "InvalidBody")},
        known=[[[2 * number], [-2 * number]] for number in range(6)],
        read=lambda body: body["outputs"]["OUTPUT_1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("task", IN_ONE_PROCESS)
def test_task_in_one_process_gives_each_its_own_answer_and_bad_items_fail_alone(
    archive: Make, model_store: Path, tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = vary(model_store, f"{task}-one-process", built(archive, task, tmp_path), fp32(task), ADAPTIVE)
    # Python logs each module that it imports.
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with run_hosts(folder, log=tmp_path / "log") as (host,):
        check(host.as_server(), task, {"adaptive": folder.name})
    lines = (tmp_path / "log").read_text().splitlines()
    assert "canary" not in "".join(line for line in lines if not line.startswith("import time:"))
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert "deploy.hosts.serve.process" in imported
    # Only these tokenizers need transformers.
    assert task == "translation" or not {"torch", "torchvision", "transformers", "ts"} & imported
    shutil.rmtree(folder)


@pytest.mark.parametrize("task", ON_TORCHSERVE)
def test_task_on_torchserve_in_both_modes_gives_each_its_own_answer_and_bad_items_fail_alone(
    server: Server, archive: Make, variant: Make, tmp_path: Path, task: str
) -> None:
    case, folder = CASES[task], built(archive, task, tmp_path)
    modes: dict[str, dict[str, Any]] = {"classic": {"continuousBatching": False}, "adaptive": ADAPTIVE}
    names = {
        mode: variant(f"{task}-{mode}", of=folder, handler={**fp32(task), "scheduling": {"mode": mode}}, **more)
        for mode, more in modes.items()
    }

    def register(mode: str) -> None:
        # A classic batch goes as soon as all are there; a machine that stalls has this long for them.
        delay_ms, size = 3000 if mode == "classic" else 1, len([*case.good, *case.bad])
        server.register(names[mode], names[mode], batch_size=size, max_batch_delay_ms=delay_ms, workers=1)

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(register, names))
    check(server, task, names)
    assert "canary" not in logged(server)


def built(archive: Make, task: str, folder: Path) -> str:
    """Build a task's archive as a folder of the model store; returns its name."""
    case = CASES[task]
    weights = None if case.checkpoint is None else str(case.checkpoint(folder))
    return archive(case.model, weights, archive_format="no-archive")


def fp32(task: str) -> dict[str, Any]:
    return {"precision": "fp32", **CASES[task].settings}


def check(server: Server, task: str, names: Mapping[str, str]) -> None:
    """Every request gets its own answer in any mix of a batch, in each mode; `names` are the modes' models."""
    case = CASES[task]
    bodies = [*case.good, *case.bad]
    # Every other one of both kinds, as far as there are.
    order = sorted(range(len(bodies)), key=lambda index: index % len(case.good))
    *_, adaptive = names.values()
    alone = [case.read(send(server, adaptive, body).body) for body in case.good]
    for answer, other in itertools.pairwise(alone):
        assert not matches(answer, other, ALIKE)
    if case.known:
        assert [next(iter(answer)) if isinstance(answer, dict) else answer for answer in alone] == case.known
    for mode, name in names.items():
        described = requests.get(url(server, name), headers={"X-Model-Metadata": "1"}, timeout=60).json()
        assert (described["task"], described["mode"] == "classic") == (task, mode == "classic")
        together = dict(zip(order, send_together(server, name, [bodies[index] for index in order]), strict=True))
        for index, expected in enumerate(alone):
            assert together[index].status == 200, together[index]
            assert matches(expected, case.read(together[index].body), ALIKE), (mode, index)
        if mode == "classic":
            assert max(together[index].batch_size for index in range(len(alone))) > 1
        for index, (status, kind) in enumerate(case.bad.values(), len(alone)):
            assert (together[index].status, together[index].body["type"]) == (status, kind), (mode, bodies[index])
            assert together[index].body["code"] == status


def test_archive_of_an_infer_py_answers_as_its_library(archive: Make, model_store: Path) -> None:
    """An .onnx is in the tutorial, which tests/nightly/test_readme.py runs."""
    from sklearn.datasets import load_diabetes  # noqa: PLC0415 - a second, in each process that collects tests
    from sklearn.linear_model import LinearRegression  # noqa: PLC0415

    data = load_diabetes(scaled=False)
    rows = ((int(age), f"{sex:.0f}", bmi, pressure) for age, sex, bmi, pressure in data.data[:8, :4].tolist())
    people = [dict(zip(("age", "sex", "bmi", "blood_pressure"), row, strict=True)) for row in rows]
    with run_hosts(model_store / archive("tabular")) as (host,):
        answers = send_together(host.as_server(), "tabular", [json.dumps(each).encode() for each in people])
    expected = LinearRegression().fit(data.data[:, :4], data.target).predict(data.data[:8, :4])
    np.testing.assert_allclose([answer.body["progression"] for answer in answers], expected, 1e-5)
    medium, high = BANDS
    bands = ["low" if value < medium else "medium" if value < high else "high" for value in expected]
    assert [answer.body["band"] for answer in answers] == bands
