"""torchserve_client.pytriton, `describe` and files of arrays against batch2 on a real TorchServe, and its gateway."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from deploy.gateway.sandbox import Sandbox
from deploy.models import model
from deploy.server import Server
from tests.e2e.test_client_examples import example
from torchserve_client import Client
from torchserve_client.cli import main
from torchserve_client.pytriton import ChunkingClient, FuturesModelClient, ModelClient
from torchserve_client.pytriton.exceptions import PyTritonClientInferenceServerError, PyTritonClientTimeoutError

NAME = "batch2"
FIVE = np.arange(5, dtype=np.int32).reshape(5, 1)


@pytest.fixture
def torchserve(server: Server, archive: Callable[..., str], serve: Callable[..., str]) -> str:
    serve(archive=archive(model(NAME)), name=NAME, max_batch_delay_ms=1)
    return server.settings.inference_url


@pytest.fixture(params=["torchserve", "gateway"])
def address(request: pytest.FixtureRequest, torchserve: str, gateway: Sandbox) -> str:
    """HOST:PORT, as PyTriton's programs write it."""
    return (torchserve if request.param == "torchserve" else gateway.http).removeprefix("http://")


def test_five_rows_come_back_as_two_two_and_one(address: str) -> None:
    with ChunkingClient(address, NAME, init_timeout_s=60) as client:
        results = [future.result()["OUTPUT_1"] for future in client.infer_batch(INPUT_1=FIVE)]
    assert [result.tolist() for result in results] == [[[0], [2]], [[4], [6]], [[8]]]
    assert {result.dtype for result in results} == {np.dtype(np.int32)}


def test_too_many_rows_fail_with_the_servers_sentence(address: str) -> None:
    with FuturesModelClient(address, NAME, init_timeout_s=60) as client:
        error = client.infer_batch(FIVE[:4]).exception()
    assert isinstance(error, PyTritonClientInferenceServerError)
    assert "batch-size must be <= 2" in str(error)
    assert error.status == 400


def test_model_is_described_and_waited_for(address: str) -> None:
    with ModelClient(address, NAME, init_timeout_s=60, lazy_init=False) as client:
        client.wait_for_server(60)
        client.wait_for_model(60)
        config = client.model_config
        assert client.infer_sample(np.array([21], np.int32), headers={"X-Priority": 1})["OUTPUT_1"].tolist() == [42]
    assert config.max_batch_size == 2
    assert [(each.name, each.shape, each.dtype) for each in config.inputs] == [("INPUT_1", (1,), np.int32)]
    assert [(each.name, each.shape, each.dtype) for each in config.outputs] == [("OUTPUT_1", (1,), np.int32)]
    with ModelClient(address, NAME, str(config.model_version), init_timeout_s=60) as client:
        assert client.infer_batch(FIVE[1:3])["OUTPUT_1"].tolist() == [[2], [4]]
    with ModelClient(address, "nobody", init_timeout_s=0.5) as client, pytest.raises(PyTritonClientTimeoutError):
        client.infer_sample(FIVE)


def test_example_prints_its_chunks(torchserve: str) -> None:
    *chunks, refused = example("pytriton", torchserve.removeprefix("http://")).splitlines()
    assert chunks == ["[[0], [2]]", "[[4], [6]]", "[[8]]"]
    assert "batch-size must be <= 2" in refused


def test_describe_shows_tensors_and_does_not_stop_the_model(
    server: Server, torchserve: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--server", torchserve, "--management", server.settings.management_url, "describe", NAME]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "max_batch_size 2" in shown
    assert "INPUT_1" in shown
    assert main([*command, "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["metadata"]["inputs"] == [{"name": "INPUT_1", "datatype": "INT32", "shape": [-1, 1]}]
    started_s = time.monotonic()
    with Client(torchserve, timeout_s=60) as client:
        assert client.predict(NAME, {"INPUT_1": [4]}) == {"OUTPUT_1": [8]}
    assert time.monotonic() - started_s < 30


def test_files_of_arrays_are_predicted(server: Server, torchserve: str, tmp_path: Path) -> None:
    folder, out = tmp_path / "rows", tmp_path / "out.jsonl"
    folder.mkdir()
    np.save(folder / "one.npy", FIVE[1:3])
    np.savez(folder / "two.npz", INPUT_1=FIVE[3:4])
    np.save(folder / "wide.npy", FIVE[:4])
    command = ["--server", torchserve, "--management", server.settings.management_url, "predict", NAME]
    assert main([*command, str(folder), "--out", str(out)]) == 1
    lines = {line["input"]: line for line in map(json.loads, out.read_bytes().splitlines())}
    assert lines["one.npy"]["answer"] == {"outputs": {"OUTPUT_1": [[2], [4]]}}
    assert lines["two.npz"]["answer"] == {"outputs": {"OUTPUT_1": [[6]]}}
    assert "batch-size must be <= 2" in lines["wide.npy"]["error"]["message"]
    with Client(torchserve, timeout_s=60) as client:
        assert client.predict(NAME, folder / "one.npy") == lines["one.npy"]["answer"]
