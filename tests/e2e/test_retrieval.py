"""Embeddings and reranking as clients of OpenAI, Cohere and Jina send them, to the gateway and to its nodes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from deploy import sandbox
from deploy.sandbox import Sandbox
from tests.e2e.test_tasks import reranker
from tests.hosts import Host, run_hosts
from tests.waiting import until
from torchserve_client import Client
from torchserve_client.cli import main

EMBEDDING, RERANKING = "sentence-embedding", "reranking"
TEXTS = ("The last ferry leaves at seven in the evening.", "Plum cake is sold on Sundays.")
QUERY = "When does the last ferry leave?"


@pytest.fixture(scope="module")
def hosts(
    archive: Callable[..., str], model_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Host]]:
    weights = str(reranker(tmp_path_factory.mktemp("reranker")))
    files = {EMBEDDING: archive(EMBEDDING), RERANKING: archive(RERANKING, weights)}
    with run_hosts(*(model_store / file for file in files.values())) as running:
        yield dict(zip(files, running, strict=True))


@pytest.fixture
def post(hosts: dict[str, Host]) -> Iterator[Callable[..., requests.Response]]:
    """Send a body to a path of the gateway, once it knows both models."""
    with sandbox.run_gateway([host.node(name) for name, host in hosts.items()]) as gateway:
        yield sender(gateway)


def sender(gateway: Sandbox) -> Callable[..., requests.Response]:
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
    post: Callable[..., requests.Response], hosts: dict[str, Host], capsys: pytest.CaptureFixture[str]
) -> None:
    """Forms and errors are tested at handlers/tasks, paths at the gateway's Envoy."""
    address, ranking = hosts[EMBEDDING].url, hosts[RERANKING].url
    own = requests.post(f"{address}/predictions/{EMBEDDING}", json={"instances": [*TEXTS]}, timeout=60).json()[
        "predictions"
    ]
    found = post("/v1/embeddings", model=EMBEDDING, input=[*TEXTS]).json()
    expected = [each["embedding"] for each in found["data"]]
    np.testing.assert_allclose(expected, own, atol=2e-2)
    assert found["usage"]["total_tokens"] == 21
    ranked = post("/v1/rerank", model=RERANKING, query=QUERY, documents=[*TEXTS], return_documents=True).json()
    with Client(address) as client:
        np.testing.assert_allclose(client.embed(EMBEDDING, TEXTS), expected, atol=2e-2)
    with Client(ranking) as client:
        best, other = client.rerank(RERANKING, QUERY, TEXTS)
    assert best.score >= other.score
    assert [each["index"] for each in ranked["results"]] == [best.index, other.index]
    assert ranked["results"][0]["document"]["text"] == TEXTS[best.index]
    assert main(["--url", address, "embed", EMBEDDING, *TEXTS]) == 0
    np.testing.assert_allclose([json.loads(line) for line in capsys.readouterr().out.splitlines()], expected, atol=2e-2)
    assert main(["--url", ranking, "rerank", RERANKING, QUERY, *TEXTS, "--top-n", "1"]) == 0
    assert capsys.readouterr().out.endswith(f"  {TEXTS[best.index]}\n")
