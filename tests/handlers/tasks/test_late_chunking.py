"""Late chunking, compared with Jina's formula: the mean of a chunk's states, of transformers' run of the whole text."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from handlers.errors import InvalidConfig
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from tests import exports
from tests.handlers.serving import serve, started
from tests.handlers.tasks.test_encoders import pooled
from tests.handlers.tasks.test_retrieval import PROMPTS, vectors
from tests.tables import table
from tests.tiny_models import LIMIT, checkpoint

pytestmark = pytest.mark.builds

CHUNKS = [
    "Anna Berg kept the inn at Lindau.",
    "The ferry did not run.",
    "봄에 강물이 불어나서?",
    "The bridge held 🌉!",
]
MEAN = {**pooled(pooling_mode_mean_tokens=True), "config_sentence_transformers.json": PROMPTS}


def make(folder: Path, engine: Any = "torch", kind: str = "bert", files: Any = MEAN, **settings: Any) -> Any:
    saved = checkpoint(folder / "weights", kind, "sentence_embedding", files=files)
    (folder / "archive").mkdir()
    built = {"has_late_chunking": True} if settings.get("has_late_chunking", True) else {}
    archive = exports.archived("sentence_embedding", saved, folder / "archive", built, engine=engine)
    return started(
        SentenceEmbeddingHandler(), archive, {"precision": "fp32", "threads": 1, "engine": engine, **built, **settings}
    )


def published(folder: Path, chunks: list[str], prompt: str = "") -> Any:
    """Jina's formula for chunks that follow each other with one space, with the model's own normalisation."""
    whole = prompt + chunks[0]
    spans = [(len(prompt), len(whole))]
    for chunk in chunks[1:]:
        spans.append((len(whole) + 1, len(whole) + 1 + len(chunk)))
        whole += f" {chunk}"
    model = import_module("sentence_transformers").SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    encoded = model.tokenizer(whole, return_offsets_mapping=True, return_tensors="pt")
    offsets = encoded.pop("offset_mapping")[0].tolist()
    with torch.no_grad():
        states = model[0].auto_model(**encoded).last_hidden_state[0]
    inner = [[at for at, (a, b) in enumerate(offsets) if a < b and start < b <= stop] for start, stop in spans]
    found = [states[own[0] : own[-1] + 1].mean(0) for own in inner]  # spans of tokens, as in Jina's chunked_pooling
    return whole, spans, torch.nn.functional.normalize(torch.stack(found), dim=1).numpy()


@table(("torch", "bert", ""), ("torch", "roberta", "query"), ("openvino", "bert", "query"))
def test_a_vector_of_each_chunk_is_the_mean_of_its_tokens_in_the_whole_text(
    engine: Any, kind: str, side: str, tmp_path: Path
) -> None:
    handler = make(tmp_path, engine, kind)
    whole, spans, expected = published(tmp_path / "weights", CHUNKS, "the river " if side else "")
    ahead, about = spans[0][0], {"input_type": side} if side else {}
    text, inner = whole[ahead:], [[start - ahead, stop - ahead] for start, stop in spans]
    native = {"text": text, "late_chunking": True, **about}
    openai = {"model": "m", "input": CHUNKS, "late_chunking": True, **about}
    packed = {**openai, "input": text, "spans": inner, "encoding_format": "base64", "dimensions": 32}
    plain = {"model": "m", "input": CHUNKS, "late_chunking": False}
    rows = [{"body": json.dumps(each)} for each in (native, {**native, "spans": inner}, openai, packed, plain)]
    answers = serve(handler, rows, [{}, {}, *3 * [{"x-api": "embeddings"}]])
    assert [each.status for each in answers] == [200] * 5, answers
    for answer in answers[:2]:  # the sentences are the chunks
        assert [[each["start"], each["end"]] for each in answer.body] == inner
        np.testing.assert_allclose([each["embedding"] for each in answer.body], expected, atol=1e-5)
    np.testing.assert_allclose(vectors(answers[2]), expected, atol=1e-5)
    assert answers[2].body["usage"]["prompt_tokens"] == len(handler.tokenizer([whole])["input_ids"][0])
    assert [each["index"] for each in answers[3].body["data"]] == [0, 1, 2, 3]
    assert np.abs(vectors(answers[4]) - expected).max() > 0.01  # the chunks alone


def test_what_late_chunking_cannot_answer_is_rejected_in_one_line(tmp_path: Path) -> None:
    handler = make(tmp_path, truncation=True, long_text="mean")
    bad: list[tuple[dict[str, Any], int, str]] = [
        ({"text": "the river " * LIMIT}, 413, rf"text: \d+ tokens; late_chunking reads at most {LIMIT} at once"),
        ({"text": "the river", "spans": [[4, 10]]}, 400, "spans: each must be .* of the 9 characters"),
        ({"text": "the river", "spans": [[0, 3], [3, 4]]}, 400, "spans: chunk 1 contains no token"),
        ({"text": "x", "spans": [[0, 1]], "late_chunking": False}, 400, "spans: needs late_chunking"),
        ({"text": [1, 2]}, 400, "late_chunking needs a text"),
    ]
    rows = [{"body": json.dumps({"late_chunking": True, **body})} for body, *_ in bad]
    infer: dict[str, Any] = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["x"]}]}
    infer |= {"parameters": {"late_chunking": True}}
    *answers, tensors = serve(handler, [*rows, {"body": json.dumps(infer)}])
    for answer, (_, status, words) in zip(answers, bad, strict=True):
        assert answer.status == status, answer
        assert re.search(words, answer.body["message"]), answer.body
    assert (tensors.status, "late_chunking: has no tensors" in json.dumps(tensors.body)) == (400, True)


def test_only_mean_pooled_archives_that_were_built_for_it_chunk_late(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidConfig, match="has_late_chunking: true needs a model that pools by mean alone; this one has cls"
    ):
        make(tmp_path, files=pooled(pooling_mode_cls_token=True))
    (tmp_path / "other").mkdir()
    handler = make(tmp_path / "other", has_late_chunking=False)
    (answer,) = serve(handler, [{"body": json.dumps({"text": "x", "late_chunking": True})}])
    assert (answer.status, "built without it" in answer.body["message"]) == (400, True)
