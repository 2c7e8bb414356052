"""torchserve_client.pytriton against a server on a real socket, as TorchServe answers and as the gateway does."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.client.tensor_server import MODEL, TensorServer, serving
from torchserve_client.pytriton import (
    ChunkingClient,
    FuturesModelClient,
    ModelClient,
    model_client,
)
from torchserve_client.pytriton.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientQueueFullError,
    PyTritonClientTimeoutError,
)

FIVE = np.arange(5, dtype=np.int32).reshape(5, 1)
ROW = np.array([7], np.int32)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that waits for nothing fails in less than PyTriton's five minutes."""
    monkeypatch.setattr(model_client, "TUNING", replace(model_client.TUNING, init_timeout_s=20))


@pytest.fixture(params=["torchserve", "gateway"])
def server(request: pytest.FixtureRequest) -> Iterator[TensorServer]:
    with serving(TensorServer(request.param)) as running:
        yield running


@pytest.fixture
def torchserve() -> Iterator[TensorServer]:
    with serving(TensorServer()) as running:
        yield running


def address(server: TensorServer) -> str:
    """HOST:PORT, as PyTriton's programs write it."""
    return server.url.removeprefix("http://")


def test_five_rows_of_the_tutorial_come_back_as_two_two_and_one(server: TensorServer) -> None:
    with ChunkingClient(address(server), MODEL) as client:
        results = [future.result() for future in client.infer_batch(INPUT_1=FIVE)]
    assert [result["OUTPUT_1"].tolist() for result in results] == [[[0], [1]], [[2], [3]], [[4]]]
    assert {result["OUTPUT_1"].dtype for result in results} == {np.dtype(np.int32)}
    assert sorted(server.rows) == [1, 2, 2]


def test_four_rows_fail_with_the_servers_sentence(server: TensorServer) -> None:
    with FuturesModelClient(address(server), MODEL) as client:
        error = client.infer_batch(FIVE[:4]).exception()
    assert isinstance(error, PyTritonClientInferenceServerError)
    assert str(error) == error.message == "The request has 4 rows; batch-size must be <= 2 for 'Batch2'."
    assert (error.status, error.type) == (400, "BatchTooLarge")


def test_model_is_asked_once_by_position_and_by_name(server: TensorServer) -> None:
    with ModelClient(address(server), MODEL) as client:
        assert server.asked == []
        assert client.infer_batch(FIVE[:2])["OUTPUT_1"].tolist() == [[0], [1]]
        before = len(server.asked)
        assert client.infer_batch(INPUT_1=FIVE[:1])["OUTPUT_1"].tolist() == [[0]]
        sample = client.infer_sample(ROW, parameters={"top_k": 1}, headers={"X-Priority": 2})
        assert sample["OUTPUT_1"].tolist() == [7]
        assert client.infer_sample(INPUT_1=ROW)["OUTPUT_1"].shape == (1,)
        assert len(server.asked) == before + 3
    assert server.parameters[2]["top_k"] == 1
    assert server.asked[before + 1][2]["X-Priority"] == "2"


def test_strategy_of_ones_own_is_given_the_arrays_and_the_models_rows(torchserve: TensorServer) -> None:
    asked: list[Any] = []

    def one_by_one(inputs: dict[str, Any], max_batch_size: int) -> Iterator[dict[str, Any]]:
        asked.append((list(inputs), max_batch_size))
        for row in range(len(inputs["INPUT_1"])):
            yield {"INPUT_1": inputs["INPUT_1"][row : row + 1]}

    with ChunkingClient(torchserve.url, MODEL, one_by_one, max_workers=2) as client:
        results = [future.result()["OUTPUT_1"].tolist() for future in client.infer_batch(FIVE)]
    assert results == [[[0]], [[1]], [[2]], [[3]], [[4]]]
    assert asked == [(["INPUT_1"], 2)]


def test_rows_that_fail_are_an_error_that_has_the_others(torchserve: TensorServer) -> None:
    with ModelClient(torchserve.url, MODEL) as client:
        with pytest.raises(
            PyTritonClientInferenceServerError, match="1 of 2 rows failed, row 1 first: it is"
        ) as raised:
            client.infer_batch(np.array([[3], [-1]], np.int32))
        assert (raised.value.status, raised.value.type) == (500, "WrongOutput")
        assert raised.value.outputs["OUTPUT_1"][0].tolist() == [3]
        assert "error" not in raised.value.outputs


def ask(client: ModelClient) -> Any:
    return client.infer_sample(ROW)


def wait(client: ModelClient) -> Any:
    return client.wait_for_model(0.4)


@pytest.mark.parametrize("call", [ask, wait])
def test_model_that_is_not_there_is_a_timeout_with_the_servers_words(
    server: TensorServer, call: Callable[[ModelClient], Any]
) -> None:
    started_s = time.monotonic()
    with ModelClient(server.url, "nobody", init_timeout_s=0.4) as client:
        with pytest.raises(PyTritonClientTimeoutError, match=r"model nobody is not ready after 0\.4 s"):
            call(client)
        assert time.monotonic() - started_s < 10
    with pytest.raises(TimeoutError, match="nobody"):
        ModelClient(server.url, "nobody", init_timeout_s=0.2, lazy_init=False)


def test_full_queue_is_refused_or_waited_with() -> None:
    with serving(TensorServer("silent")) as server:
        limits: dict[str, Any] = {"max_workers": 1, "max_queue_size": 1}
        for options in ({"non_blocking": True}, {"inference_timeout_s": 0.2}):
            client = FuturesModelClient(server.url, MODEL, **limits, **options)
            waiting: list[Future[Any]] = [client.infer_sample(ROW), client.infer_sample(ROW)]
            with pytest.raises(PyTritonClientQueueFullError):
                client.infer_sample(ROW)
            with pytest.raises(KeyboardInterrupt), client:
                raise KeyboardInterrupt
            assert isinstance(waiting[0].exception(), PyTritonClientClosedError)
            with pytest.raises(CancelledError):
                waiting[1].result()
