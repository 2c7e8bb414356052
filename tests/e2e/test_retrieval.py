"""Embeddings and reranking as clients of OpenAI, Cohere and Jina send them, to the gateway and to TorchServe itself."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import requests

from deploy.run.server import Server
from deploy.sandbox import Sandbox
from tests.e2e.conftest import url
from tests.e2e.test_tasks import reranker
from tests.waiting import until
from torchserve_client import Client
from torchserve_client.cli import main

EMBEDDING, RERANKING = "sentence-embedding", "reranking"
TEXTS = ("The last ferry leaves at seven in the evening.", "Plum cake is sold on Sundays.")
QUERY = "When does the last ferry leave?"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(reranker(tmp_path_factory.mktemp("reranker")))


@pytest.fixture
def post(
    gateway: Sandbox, archive: Callable[..., str], serve: Callable[..., str], weights: str
) -> Callable[..., requests.Response]:
    """Send a body to a path of the gateway, once it knows both models."""
    files = {EMBEDDING: archive(EMBEDDING), RERANKING: archive(RERANKING, weights)}
    with ThreadPoolExecutor(len(files)) as pool:
        list(pool.map(lambda name: serve(files[name], name, batch_size=64, max_batch_delay_ms=1), files))

    def send(path: str, **body: Any) -> requests.Response:
        return requests.post(f"{gateway.http}{path}", json=body, timeout=60)

    def names() -> set[str]:
        listed = requests.get(f"{gateway.http}/v1/models", timeout=60).json()
        return {each["id"] for each in listed["data"]}

    until(lambda: {EMBEDDING, RERANKING} <= names())
    until(lambda: send("/v1/embeddings", model=EMBEDDING, input="x").status_code == 200)
    until(lambda: send("/v1/rerank", model=RERANKING, query="x", documents=["x"]).status_code == 200)
    return send


def test_client_and_command_embed_and_rerank(
    post: Callable[..., requests.Response], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forms and errors are tested at handlers/tasks, paths at the gateway's Envoy."""
    own = requests.post(url(server, EMBEDDING), json={"instances": [*TEXTS]}, timeout=60).json()["predictions"]
    found = post("/v1/embeddings", model=EMBEDDING, input=[*TEXTS]).json()
    expected = [each["embedding"] for each in found["data"]]
    np.testing.assert_allclose(expected, own, atol=2e-2)
    assert found["usage"]["total_tokens"] == 21
    ranked = post("/v1/rerank", model=RERANKING, query=QUERY, documents=[*TEXTS], return_documents=True).json()
    address = url(server, "").removesuffix("/predictions/")
    with Client(address) as client:
        np.testing.assert_allclose(client.embed(EMBEDDING, TEXTS), expected, atol=2e-2)
        best, other = client.rerank(RERANKING, QUERY, TEXTS)
    assert best.score >= other.score
    assert [each["index"] for each in ranked["results"]] == [best.index, other.index]
    assert ranked["results"][0]["document"]["text"] == TEXTS[best.index]
    assert main(["--url", address, "embed", EMBEDDING, *TEXTS]) == 0
    np.testing.assert_allclose([json.loads(line) for line in capsys.readouterr().out.splitlines()], expected, atol=2e-2)
    assert main(["--url", address, "rerank", RERANKING, QUERY, *TEXTS, "--top-n", "1"]) == 0
    assert capsys.readouterr().out.endswith(f"  {TEXTS[best.index]}\n")
