"""Models beyond one vector, and requests to them that every host answers as one process does."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
import yaml

from deploy.models import ModelEntry
from load.expect import matches
from tests import hosts, tiny_retrieval
from tests.tiny_models import LIMIT, TEXTS, checkpoint
from tests.waiting import until

QUERY, TEXT, LONG = "Who wrote the letter?", TEXTS[0], "the river rose " * LIMIT
POOLED = {
    "modules.json": [
        {"idx": at, "name": str(at), "path": path, "type": f"{tiny_retrieval.TYPE}{kind}"}
        for at, (kind, path) in enumerate([("Transformer", ""), ("Pooling", "1_Pooling")])
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
}


def chunked(folder: Path) -> Path:
    return checkpoint(folder, "bert", "sentence_embedding", files=POOLED)


# A model's name -> its task, the function that writes its weights, and its settings.
MODELS: dict[str, tuple[str, Callable[[Path], Path], dict[str, Any]]] = {
    "splade": ("sparse_embedding", tiny_retrieval.splade, {"scheduling": {"mode": "classic"}}),
    "colbert": ("multi_vector_embedding", tiny_retrieval.late, {}),
    "m3": ("hybrid_embedding", tiny_retrieval.m3, {}),
    "chunks": ("sentence_embedding", chunked, {"has_late_chunking": True}),
    "judge": ("reranking", tiny_retrieval.judge, {}),
}
# Path, body and status; the errors stand between requests that they must not touch.
ROWS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("/embed_sparse", {"model": "splade", "inputs": [*TEXTS]}, 200),
    ("/embed_sparse", {"model": "splade", "inputs": ["x", ""]}, 400),
    ("/embed_sparse", {"model": "splade", "inputs": TEXT, "return_tokens": True, "top_k": 3}, 200),
    ("/embed_sparse", {"model": "splade", "inputs": TEXT, "top_k": 0}, 400),
    ("/v1/embeddings", {"model": "splade", "input": [*TEXTS]}, 200),
    ("/pooling", {"model": "colbert", "input": [*TEXTS], "input_type": "query"}, 200),
    ("/pooling", {"model": "colbert", "input": LONG, "truncation": False}, 413),
    ("/pooling", {"model": "colbert", "input": TEXT, "encoding_format": "base64", "embed_dtype": "float16"}, 200),
    ("/pooling", {"model": "colbert", "input": TEXT, "embed_dtype": "fp8"}, 400),
    ("/rerank", {"model": "colbert", "query": QUERY, "documents": [*TEXTS], "return_documents": True}, 200),
    ("/rerank", {"model": "colbert", "query": "", "documents": [*TEXTS]}, 400),
    ("/v1/embeddings", {"model": "m3", "input": [*TEXTS], "return_sparse": True, "return_colbert_vecs": True}, 200),
    ("/v1/embeddings", {"model": "m3", "input": TEXT, "return_dense": False}, 400),
    ("/embed_sparse", {"model": "m3", "inputs": [*TEXTS]}, 200),
    ("/pooling", {"model": "m3", "input": [*TEXTS]}, 200),
    ("/v1/rerank", {"model": "m3", "query": QUERY, "documents": [*TEXTS]}, 200),
    ("/v1/embeddings", {"model": "chunks", "input": [*TEXTS[:3]], "late_chunking": True}, 200),
    ("/v1/embeddings", {"model": "chunks", "input": "a letter", "late_chunking": True, "spans": [[2, 10]]}, 400),
    ("/v1/embeddings", {"model": "chunks", "input": LONG, "late_chunking": True}, 413),
    ("/v1/embeddings", {"model": "chunks", "input": [*TEXTS]}, 200),
    ("/predictions/chunks", {"text": f"{TEXT} {QUERY}", "late_chunking": True}, 200),
    ("/rerank", {"model": "judge", "query": QUERY, "documents": [*TEXTS]}, 200),
    ("/rerank", {"model": "judge", "query": QUERY, "texts": [*TEXTS]}, 200),
    ("/rerank", {"model": "judge", "query": QUERY, "documents": [TEXT, ""]}, 400),
    ("/rerank", {"model": "judge", "query": QUERY, "documents": [LONG], "truncation": False}, 413),
    ("/pooling", {"model": "judge", "input": TEXT}, 400),
    ("/embed_sparse", {"model": "chunks", "inputs": TEXT}, 400),
    ("/pooling", {"model": "other", "input": TEXT}, 404),
)
START_S = 180.0  # seconds for a host of several models on a machine that is busy
HEADERS = ("Content-Type", "X-Vector-Space", "X-Tokens", "X-Model-Version")


def entries(folder: Path) -> Iterator[tuple[ModelEntry, str]]:
    """Write the models; yield the entry and the weights of each."""
    for name, (task, write, settings) in MODELS.items():
        (folder / name).mkdir(parents=True)
        own = {"handler": {"precision": "fp32", **settings}}
        (folder / name / "model-config.yaml").write_text(yaml.safe_dump(own))
        yield ModelEntry(name, task, "1.0", folder / name), str(write(folder / "weights" / name))


@contextmanager
def one_process(store: Path) -> Iterator[str]:
    """Serve the models' archives of a store in one process; yield its URL."""
    host = hosts.start(*(store / f"{name}.mar" for name in MODELS))
    try:
        until(lambda: hosts.is_ready(host), START_S)
        yield host.url
    finally:
        host.end()


def answers(url: str) -> list[tuple[int, Any, dict[str, str | None]]]:
    """Return the status, body and headers that a host answers each row with, if all are sent at once."""

    def ask(row: tuple[str, dict[str, Any], int]) -> tuple[int, Any, dict[str, str | None]]:
        path, body, _ = row
        found = requests.post(url + path, json.dumps(body), headers={"Content-Type": "application/json"}, timeout=120)
        content = found.json()
        if isinstance(content, dict):
            content.pop("id", None)
        return found.status_code, content, {name: found.headers.get(name) for name in HEADERS}

    with ThreadPoolExecutor(len(ROWS)) as pool:
        return [*pool.map(ask, ROWS)]


def assert_as_one_process(url: str, expected: list[tuple[int, Any, dict[str, str | None]]]) -> None:
    for (path, body, status), wanted, found in zip(ROWS, expected, answers(url), strict=True):
        assert wanted[0] == status, (path, body, wanted)
        assert (found[0], found[2]) == (wanted[0], wanted[2]), (path, body, found, wanted)
        assert matches(wanted[1], found[1], 1e-4) and matches(found[1], wanted[1], 1e-4), (path, body, found, wanted)
