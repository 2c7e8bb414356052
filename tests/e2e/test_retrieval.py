"""Embeddings and reranking as clients of OpenAI, Cohere and Jina send them, to the gateway and to TorchServe itself."""

import base64
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


def test_embeddings_are_those_of_our_own_form(post: Callable[..., requests.Response], server: Server) -> None:
    own = requests.post(url(server, EMBEDDING), json={"instances": [*TEXTS]}, timeout=60).json()["predictions"]
    floats = post("/v1/embeddings", model=EMBEDDING, input=[*TEXTS])
    packed = post("/v1/embeddings", input=[*TEXTS], encoding_format="base64", model=EMBEDDING)
    assert (floats.status_code, floats.json()["usage"]["total_tokens"]) == (200, 21)
    vectors = [each["embedding"] for each in floats.json()["data"]]
    decoded = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in packed.json()["data"]]
    np.testing.assert_allclose(vectors, own, atol=2e-2)
    np.testing.assert_allclose(decoded, own, atol=2e-2)
    # TorchServe's own port, and what LangChain sends as it comes.
    direct = requests.post(url(server, EMBEDDING), json={"input": QUERY}, headers={"X-Api": "embeddings"}, timeout=60)
    assert len(direct.json()["data"]) == 1
    ids = post("/v1/embeddings", model=EMBEDDING, input=[[15339, 1917], [65]], encoding_format="base64")
    assert (ids.status_code, ids.json()["error"]["param"]) == (400, "input")
    assert "check_embedding_ctx_length=False" in ids.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_are_ranked(post: Callable[..., requests.Response], server: Server, path: str) -> None:
    asked = {"query": QUERY, "documents": [{"text": each} for each in TEXTS] * 50, "return_documents": True}
    answer = post(path, **asked, top_n=3, model=RERANKING)
    assert answer.status_code == 200, answer.text
    own = {"query": QUERY, "instances": [{"document": each} for each in TEXTS]}
    pairs = requests.post(url(server, RERANKING), json=own, timeout=60).json()["predictions"]
    best = max(range(2), key=lambda index: pairs[index]["score"])
    scores = [each["relevance_score"] for each in answer.json()["results"]]
    assert scores == pytest.approx([pairs[best]["score"]] * 3, abs=2e-2)
    assert {each["document"]["text"] for each in answer.json()["results"]} == {TEXTS[best]}


def test_client_and_command_embed_and_rerank(
    post: Callable[..., requests.Response], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = [each["embedding"] for each in post("/v1/embeddings", model=EMBEDDING, input=[*TEXTS]).json()["data"]]
    address = url(server, "").removesuffix("/predictions/")
    with Client(address) as client:
        np.testing.assert_allclose(client.embed(EMBEDDING, TEXTS), expected, atol=2e-2)
        best, other = client.rerank(RERANKING, QUERY, TEXTS)
    assert best.score >= other.score
    assert main(["--url", address, "embed", EMBEDDING, *TEXTS]) == 0
    np.testing.assert_allclose([json.loads(line) for line in capsys.readouterr().out.splitlines()], expected, atol=2e-2)
    assert main(["--url", address, "rerank", RERANKING, QUERY, *TEXTS, "--top-n", "1"]) == 0
    assert capsys.readouterr().out.endswith(f"  {TEXTS[best.index]}\n")
