"""The clients of other servers' APIs, in separate environments, unchanged against the gateway."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import requests

from deploy.models import ROOT
from load import sandbox
from load.bench.peer_process import PYTRITON, build_environment
from load.sandbox import Sandbox
from tests.e2e.conftest import Make, printed
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
def url(archive: Make, model_store: Path, tmp_path: Path) -> Iterator[str]:
    tiny = str(reranker(tmp_path / "reranker"))
    models = {"sentence-embedding": archive("sentence-embedding"), "reranking": archive("reranking", tiny)}
    aliases = {"intfloat/alias": "sentence-embedding"}
    with ExitStack() as stack:
        hosts = stack.enter_context(run_hosts(*(model_store / file for file in models.values())))
        nodes = [host.node(name) for host, name in zip(hosts, models, strict=True)]
        gateway = stack.enter_context(sandbox.run_gateway(nodes, aliases=aliases))
        listed = f"{gateway.http}/v1/models"
        until(lambda: len(requests.get(listed, timeout=60).json()["data"]) == len(models) + len(aliases))
        asked = {"model": "sentence-embedding", "input": "x"}
        until(lambda: requests.post(f"{gateway.http}/v1/embeddings", json=asked, timeout=60).ok)
        yield gateway.http


def run(python: Path, module: str, *arguments: str, **variables: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return printed(python, "-m", module, *arguments, cwd=ROOT, env=environment, timeout=300).splitlines()


def test_clients_examples_and_our_command_run_unchanged(
    url: str, vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nothing comes from the network.
    offline = {"TIKTOKEN_CACHE_DIR": str(vocabulary), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    assert run(PYTHON, "tests.nightly.retrieval.program", url, **offline) == NAMES
    best, other, tokens = run(PYTHON, "examples.client.openai_embeddings", f"{url}/v1", **offline)
    assert (float(best.split()[0]) > float(other.split()[0]), tokens) == (True, "30 tokens")
    found = run(PYTHON, "examples.client.langchain_search", f"{url}/v1", **offline)
    assert found == ["The last ferry leaves at seven in the evening."]
    assert main(["--url", url, "embed", "sentence-embedding", "A text."]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 384
    assert main(["--url", url, "rerank", "reranking", "When?", "At seven.", "Plum cake.", "--top-n", "1"]) == 0
    assert capsys.readouterr().out.endswith(("  At seven.\n", "  Plum cake.\n"))


GENERATED = """
import json, sys
from generated import Client
from generated.api.default import post_v1_embeddings
from generated.api.sentence_embedding import get_v2_models_sentence_embedding_ready, post_predictions_sentence_embedding
from generated.models import PostPredictionsSentenceEmbeddingJsonBodyType0 as Item, PostV1EmbeddingsBody as Texts
from generated.models import PostV1EmbeddingsBodyModel as Model

client = Client(base_url=sys.argv[1])
own = post_predictions_sentence_embedding.sync(client=client, body=Item(text="A text."))
asked = {"input_": "A text.", "model": Model("sentence-embedding")}
texts = post_v1_embeddings.sync(client=client, body=Texts(**asked))
wrong = post_v1_embeddings.sync(client=client, body=Texts(**asked, dimensions=8))
ready = get_v2_models_sentence_embedding_ready.sync_detailed(client=client)
print(json.dumps([own, texts["data"][0]["embedding"], wrong.error["param"], ready.status_code]))
"""


def test_client_that_is_generated_from_openapi_has_each_route_and_calls_a_model(
    url: str, vocabulary: Path, tmp_path: Path
) -> None:
    command = [str(PYTHON), "-m", "openapi_python_client", "generate", "--url", f"{url}/openapi.json", "--meta", "none"]
    command += ["--output-path", str(tmp_path / "generated")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "will not be generated" not in done.stdout + done.stderr
    own, openai, param, status = json.loads(printed(PYTHON, "-c", GENERATED, url, cwd=tmp_path))
    np.testing.assert_allclose(own, openai, atol=2e-2)
    assert (len(own), param, status) == (384, "dimensions", 200)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_program_of_pytritons_client_runs_unchanged(
    gateway: Sandbox, archive: Make, serve: Make, protocol: str
) -> None:
    build_environment("pytriton")
    serve(archive=archive("batch2"), name="batch2", max_batch_delay_ms=1)
    # The gateway may not have seen yet that the model is there.
    until(lambda: requests.get(f"{gateway.http}/v2/models/batch2", timeout=60).json().get("inputs"))
    address = {"http": gateway.http, "grpc": f"grpc://{gateway.grpc}"}[protocol]
    python = ROOT / ".extras" / "pytriton" / "bin" / "python"
    too_many, *chunks = run(python, "examples.client.pytriton", address, **PYTRITON.variables)
    assert chunks == ["[[0], [2]]", "[[4], [6]]", "[[8]]"]
    assert "batch-size must be <= 2" in too_many
