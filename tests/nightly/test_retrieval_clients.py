"""The clients of other servers' APIs, in a separate environment, unchanged against the gateway."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import requests

from deploy import sandbox
from deploy.models import ROOT
from load.bench.peer_process import build_environment
from tests.e2e.test_tasks import reranker
from tests.hosts import run_hosts
from tests.waiting import until
from torchserve_client.cli import main

HERE = Path(__file__).parent / "retrieval"
PYTHON = ROOT / ".extras" / "retrieval-clients" / "bin" / "python"
NAMES = [
    *("openai_python", "openai_errors", "openai_async", "langchain", "llama_index", "cohere", "jina"),
    *("cohere_embeddings", "litellm", "voyage", "text_embeddings_inference", "hugging_face"),
]


@pytest.fixture
def vocabulary() -> Path:
    """The folder in which LlamaIndex's wheel has cl100k's vocabulary, under the name that tiktoken keeps it by."""
    build_environment("retrieval-clients", HERE / "clients.lock")
    (found,) = PYTHON.parent.parent.glob("lib/python3*/site-packages/llama_index/core/_static/tiktoken_cache")
    return found


@pytest.fixture
def url(archive: Callable[..., str], model_store: Path, tmp_path: Path) -> Iterator[str]:
    models = {
        "sentence-embedding": archive("sentence-embedding"),
        "reranking": archive("reranking", str(reranker(tmp_path / "reranker"))),
    }
    aliases = {"intfloat/alias": "sentence-embedding"}
    with ExitStack() as stack:
        hosts = stack.enter_context(run_hosts(*(model_store / file for file in models.values())))
        nodes = [host.node(name) for host, name in zip(hosts, models, strict=True)]
        gateway = stack.enter_context(sandbox.run_gateway(nodes, aliases=aliases))
        listed = f"{gateway.http}/v1/models"
        until(lambda: len(requests.get(listed, timeout=60).json()["data"]) == len(models) + len(aliases))
        until(partial(answers, gateway.http, "sentence-embedding"))
        yield gateway.http


def answers(url: str, model: str) -> bool:
    return requests.post(f"{url}/v1/embeddings", json={"model": model, "input": "x"}, timeout=60).ok


def run(module: str, *arguments: str, vocabulary: Path) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TIKTOKEN_CACHE_DIR": str(vocabulary)}
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # not from the network
    command = [str(PYTHON), "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_clients_examples_and_our_command_run_unchanged(
    url: str, vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("tests.nightly.retrieval.program", url, vocabulary=vocabulary) == NAMES
    best, other, tokens = run("examples.client.openai_embeddings", f"{url}/v1", vocabulary=vocabulary)
    assert float(best.split()[0]) > float(other.split()[0])
    assert tokens == "30 tokens"
    found = run("examples.client.langchain_search", f"{url}/v1", vocabulary=vocabulary)
    assert found == ["The last ferry leaves at seven in the evening."]
    assert main(["--url", url, "embed", "sentence-embedding", "A text."]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 384
    assert main(["--url", url, "rerank", "reranking", "When?", "At seven.", "Plum cake.", "--top-n", "1"]) == 0
    assert capsys.readouterr().out.endswith(("  At seven.\n", "  Plum cake.\n"))
