"""Each file of examples/client/, run as its first line says, against a real TorchServe."""

import ast
import subprocess
import sys
from collections.abc import Callable

import pytest

from deploy.models import ROOT
from deploy.server import Server


def run(*command: str) -> str:
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    return finished.stdout


def example(name: str, *arguments: str) -> str:
    return run(sys.executable, "-m", f"examples.client.{name}", *arguments)


@pytest.fixture
def resnet(serve: Callable[..., str]) -> str:
    """Untrained: which label it gives means nothing, that it gives one does."""
    return serve(archive="resnet-152.mar", name="resnet-152")


@pytest.fixture
def embedding(archive: Callable[..., str], serve: Callable[..., str]) -> str:
    return serve(archive=archive("sentence-embedding"), name="sentence-embedding", batch_size=32, max_batch_delay_ms=5)


def test_curl_example_prints_an_answer_of_each_shape(server: Server, resnet: str) -> None:
    whole, first, listed = run("examples/client/curl.sh", server.settings.inference_url).splitlines()
    assert len(ast.literal_eval(whole)) == 5
    assert len(ast.literal_eval(first)) == 1
    assert [len(item) for item in ast.literal_eval(listed)["predictions"]] == [1, 1]
    # A list and a single request are one model: the cat is the same one, up to the arithmetic of other batches.
    assert ast.literal_eval(listed)["predictions"][0].keys() == ast.literal_eval(first).keys()


def test_predict_example_prints_answers_and_errors(server: Server, resnet: str) -> None:
    single, *listed, refused = example("predict", server.settings.inference_url).splitlines()
    assert [len(ast.literal_eval(line)) for line in (single, *listed[:2])] == [1, 1, 1]
    assert listed[2].startswith("failed: UnsupportedMedia: ")
    assert refused.startswith("400 UnknownOption: ")


def test_folder_example_prints_an_answer_for_each_photograph(server: Server, resnet: str) -> None:
    lines = example("folder", server.settings.inference_url).splitlines()
    answers = dict(line.split(" ", 1) for line in lines)
    assert answers.keys() == {path.name for path in (ROOT / "examples").rglob("*.jpg")}
    assert all(len(ast.literal_eval(answer)) == 1 for answer in answers.values())


def test_chunking_example_embeds_every_sentence(server: Server, embedding: str) -> None:
    settings = server.settings
    lists, tensors = example("chunking", settings.inference_url, settings.management_url).splitlines()
    assert lists.startswith("as lists (1000, 384) [[")
    assert tensors == "as tensors (100, 384)"


def test_triton_example_embeds_two_sentences(server: Server, embedding: str) -> None:
    printed = example("triton", server.settings.inference_url.removeprefix("http://"))
    assert printed.startswith("news float32 (2, 384) [[")
