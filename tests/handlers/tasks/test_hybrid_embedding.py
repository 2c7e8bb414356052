"""bge-m3's three answers of one run, each that of its own formula."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from handlers.tasks.hybrid_embedding import HybridEmbeddingHandler
from handlers.tasks.multi_vector_embedding import MultiVectorEmbeddingHandler
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.tasks.sparse_embedding import SparseEmbeddingHandler
from tests import exports, tiny_retrieval
from tests.handlers.serving import serve, started
from tests.handlers.tasks.test_retrieval import ask
from tests.tiny_models import TEXTS

pytestmark = pytest.mark.builds

PARTS = ("return_dense", "return_sparse", "return_colbert_vecs")


@pytest.fixture(scope="module", params=["torch", "openvino"])
def handlers(request: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the handler, and one of each single answer, whose own tests hold them to their libraries."""
    saved: Path = tiny_retrieval.m3(tmp_path_factory.mktemp("weights"))
    settings = {"precision": "fp32", "threads": 1}
    tasks: dict[str, Any] = {"hybrid_embedding": HybridEmbeddingHandler, "sentence_embedding": SentenceEmbeddingHandler}
    tasks |= {"sparse_embedding": SparseEmbeddingHandler, "multi_vector_embedding": MultiVectorEmbeddingHandler}
    return [
        started(
            made(),
            exports.archived(task, saved, tmp_path_factory.mktemp(task), {}, engine=engine),
            {**settings, "engine": engine},
        )
        for task, made in tasks.items()
        for engine in [cast(Any, request.param if task == "hybrid_embedding" else "torch")]
    ]


def bodies(**options: Any) -> list[Any]:
    return [{"body": json.dumps({"text": text, **options})} for text in TEXTS]


def test_parts_of_one_run_are_those_of_the_models_for_each(
    handlers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hybrid, dense, sparse, late = handlers
    runs, run = list[int](), hybrid.engine.run

    def counted(inputs: Any) -> Any:
        runs.append(len(inputs["input_ids"]))
        return run(inputs)

    monkeypatch.setattr(hybrid.engine, "run", counted)
    answers = serve(hybrid, bodies(**dict.fromkeys(PARTS, True)))
    assert sum(runs) == len(TEXTS)
    others = [serve(each, bodies()) for each in (dense, sparse, late)]
    for answer, vector, words, matrix in zip(answers, *others, strict=True):
        np.testing.assert_allclose(answer.body["dense_vecs"], vector.body, atol=2e-5)
        assert answer.body["lexical_weights"]["indices"] == words.body["indices"]
        np.testing.assert_allclose(answer.body["lexical_weights"]["values"], words.body["values"], atol=2e-5)
        np.testing.assert_allclose(answer.body["colbert_vecs"], matrix.body, atol=2e-5)
    plain, nothing = serve(hybrid, [*bodies()[:1], *bodies(return_dense=False)[:1]])
    assert ([*plain.body], nothing.status) == (["dense_vecs"], 400)


def test_each_api_has_its_part(handlers: list[Any]) -> None:
    hybrid, dense, sparse, late = handlers
    asked: list[tuple[Any, str, Any]] = [
        (dense, "embeddings", {"input": [*TEXTS]}),
        (sparse, "sparse", {"inputs": [*TEXTS]}),
        (late, "pooling", {"input": [*TEXTS]}),
        (late, "rerank", {"query": TEXTS[0], "documents": [*TEXTS]}),
    ]
    for other, api, body in asked:
        (found,), (wanted,) = ask(hybrid, api, body), ask(other, api, body)
        assert (found.status, _numbers(found.body).shape) == (200, _numbers(wanted.body).shape), found.body
        np.testing.assert_allclose(_numbers(found.body), _numbers(wanted.body), atol=3e-5)
    (both, bad) = ask(
        hybrid, "embeddings", {"input": TEXTS[0], "return_sparse": True}, {"input": "x", "return_dense": False}
    )
    assert [*both.body["data"][0]] == ["object", "index", "embedding", "lexical_weights"]
    assert (bad.status, bad.body["error"]["param"]) == (400, "return_dense")


def _numbers(body: Any) -> Any:
    """Return all numbers of an answer in their order."""
    if isinstance(body, dict):
        return np.concatenate([_numbers(body[key]) for key in sorted(body) if key not in ("id", "model")])
    if isinstance(body, list):
        return np.concatenate([np.zeros(0), *map(_numbers, body)])
    return np.array([body] if isinstance(body, int | float) else [])
