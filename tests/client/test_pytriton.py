"""torchserve_client.pytriton against a server on a real socket, as TorchServe answers and as the gateway does."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deploy.sandbox import free_ports
from tests.client.certificates import Certificates
from tests.client.conftest import Listen
from tests.client.listener import answering
from tests.client.tensor_server import HANDLERS, MODEL, TensorServer, serving
from torchserve_client.pytriton import (
    ChunkingClient,
    FuturesModelClient,
    ModelClient,
    TensorSpec,
    TritonModelConfig,
    addresses,
    model_client,
)
from torchserve_client.pytriton.addresses import Tuning, candidates
from torchserve_client.pytriton.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidUrlError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientModelUnavailableError,
    PyTritonClientQueueFullError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
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


def test_configuration_is_the_models(server: TensorServer) -> None:
    expected = TritonModelConfig(
        model_name=MODEL,
        model_version="1.0",
        max_batch_size=2,
        inputs=[TensorSpec("INPUT_1", (1,), np.int32, datatype="INT32")],
        outputs=[TensorSpec("OUTPUT_1", (1,), np.int32, datatype="INT32")],
    )
    with ModelClient(address(server), MODEL) as client, FuturesModelClient(address(server), MODEL) as futures:
        assert client.model_config == futures.model_config().result() == expected
        assert client.is_batching_supported


@pytest.mark.parametrize("client_class", [ModelClient, FuturesModelClient, ChunkingClient])
@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (((FIVE,), {"INPUT_1": FIVE}), PyTritonClientValueError, "by position or by name"),
        (((), {}), ValueError, "no input"),
        (((), {"a": FIVE, "b": FIVE[:4]}), ValueError, "first dimensions, which count rows, differ: a has 5, b has 4"),
        (((FIVE, FIVE[:4]), {}), ValueError, "input 0 has 5, input 1 has 4"),
        (((), {"a": np.int32(3)}), TypeError, "a: an array of numpy is expected, and not int32"),
        ((([[1]],), {}), TypeError, "input 0: an array of numpy is expected, and not list"),
        (((np.array(3),), {}), ValueError, "no first dimension"),
    ],
)
def test_what_cannot_be_rows_is_refused_before_anything_is_sent(
    torchserve: TensorServer, client_class: Any, given: Any, kind: type[Exception], words: str
) -> None:
    inputs, named = given
    with client_class(torchserve.url, MODEL) as client:
        with pytest.raises(kind, match=words):
            client.infer_batch(*inputs, **named)
        assert torchserve.asked == []


@pytest.mark.parametrize("kind", ["parameters", "headers"])
@pytest.mark.parametrize("values", [[1], {1: "a"}, {"a": None}, {"a": [1]}])
def test_parameters_and_headers_are_a_dictionary_of_plain_values(
    torchserve: TensorServer, kind: str, values: Any
) -> None:
    with ModelClient(torchserve.url, MODEL) as client, pytest.raises(PyTritonClientValueError, match=kind):
        client.infer_sample(ROW, **{kind: values})
    assert torchserve.asked == []


def test_more_arrays_than_inputs_and_other_names_are_told(torchserve: TensorServer) -> None:
    with ModelClient(torchserve.url, MODEL) as client:
        with pytest.raises(PyTritonClientValueError, match="for a model whose inputs are: INPUT_1"):
            client.infer_batch(FIVE, FIVE)
        with pytest.raises(PyTritonClientInferenceServerError, match="x: this model has INPUT_1"):
            client.infer_batch(x=FIVE[:1])


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


@pytest.mark.parametrize(
    ("chunk", "kind"), [({"a": FIVE, "b": ROW}, ValueError), ({"a": [1]}, TypeError), ({}, ValueError)]
)
def test_strategy_that_makes_no_chunks_is_told_before_any_is_sent(
    torchserve: TensorServer, chunk: Any, kind: type[Exception]
) -> None:
    with ChunkingClient(torchserve.url, MODEL, lambda inputs, _rows: [inputs, chunk]) as client:
        with pytest.raises(kind):
            client.infer_batch(INPUT_1=FIVE[:2])
        assert torchserve.rows == []


def test_rows_that_fail_are_an_error_that_has_the_others(torchserve: TensorServer) -> None:
    with ModelClient(torchserve.url, MODEL) as client:
        with pytest.raises(
            PyTritonClientInferenceServerError, match="1 of 2 rows failed, row 1 first: it is"
        ) as raised:
            client.infer_batch(np.array([[3], [-1]], np.int32))
        assert (raised.value.status, raised.value.type) == (500, "WrongOutput")
        assert raised.value.outputs["OUTPUT_1"][0].tolist() == [3]
        assert "error" not in raised.value.outputs


def test_model_of_single_samples_takes_no_batches() -> None:
    said = {name: value for name, value in HANDLERS.items() if name != "max_batch_size"}
    with serving(TensorServer(metadata=said)) as server, ModelClient(server.url, MODEL) as client:
        assert not client.is_batching_supported
        assert client.infer_sample(FIVE[:2])["OUTPUT_1"].tolist() == [[0], [1]]
        with pytest.raises(PyTritonClientModelDoesntSupportBatchingError):
            client.infer_batch(FIVE[:2])
        with (
            ChunkingClient(server.url, MODEL) as chunking,
            pytest.raises(PyTritonClientModelDoesntSupportBatchingError),
        ):
            chunking.infer_batch(FIVE)


def test_model_that_comes_up_meanwhile_is_waited_for(server: TensorServer) -> None:
    server.unready = 3
    with ModelClient(server.url, MODEL, init_timeout_s=60, lazy_init=False) as client:
        assert server.unready == 0
        assert server.rows == []
        assert client.infer_sample(ROW)["OUTPUT_1"].tolist() == [7]


@pytest.mark.parametrize("wait", ["wait_for_model", "wait_for_server"])
def test_server_and_model_that_are_ready_are_not_waited_for(server: TensorServer, wait: str) -> None:
    with ModelClient(server.url, MODEL) as client:
        assert getattr(client, wait)(60) is None
    with FuturesModelClient(server.url, MODEL) as futures:
        assert futures.wait_for_model(60).result() is None
    assert server.rows == []


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


def test_server_that_is_gone_is_a_timeout() -> None:
    (port,) = free_ports(1)
    with ModelClient(f"127.0.0.1:{port}", MODEL, init_timeout_s=0.3) as client:
        with pytest.raises(PyTritonClientTimeoutError, match="nothing answers"):
            client.infer_sample(ROW)
        with pytest.raises(PyTritonClientTimeoutError, match=r"the server is not ready after 0\.2 s: .*nothing"):
            client.wait_for_server(0.2)


def test_answer_that_takes_too_long_is_a_timeout(torchserve: TensorServer) -> None:
    with ModelClient(torchserve.url, MODEL, inference_timeout_s=0.3) as client:
        assert client.infer_sample(ROW)["OUTPUT_1"].tolist() == [7]
        torchserve.role = "silent"
        with pytest.raises(PyTritonClientTimeoutError):
            client.infer_sample(ROW)


@pytest.mark.parametrize("said", [{}, {"predictions": []}])
def test_model_that_does_not_say_what_it_takes_is_unavailable_at_once(said: Any) -> None:
    with (
        serving(TensorServer(metadata=said)) as server,
        ModelClient(server.url, MODEL, init_timeout_s=60) as client,
        pytest.raises(PyTritonClientModelUnavailableError, match="Batch2: it does not say"),
    ):
        client.infer_sample(ROW)


def test_version_that_is_not_there_is_named(server: TensorServer) -> None:
    with ModelClient(server.url, MODEL, "1.0") as client:
        client.infer_sample(ROW)
    assert server.paths[-1] == f"POST /predictions/{MODEL}/1.0"
    words = "model Batch2 version 9 is not ready"
    other = ModelClient(server.url, MODEL, "9", init_timeout_s=0.2)
    with other, pytest.raises(PyTritonClientTimeoutError, match=words):
        other.infer_sample(ROW)


def test_client_of_another_client_asks_nothing_again(torchserve: TensorServer) -> None:
    with ModelClient(torchserve.url, MODEL, access_token="key") as first:  # noqa: S106
        first.infer_sample(ROW)
        before = len(torchserve.asked)
        with ModelClient.from_existing_client(first) as second:
            assert second.infer_sample(ROW)["OUTPUT_1"].tolist() == [7]
        assert len(torchserve.asked) == before + 1
        assert torchserve.asked[-1][2]["Authorization"] == "Bearer key"
        # Closing one leaves the other.
        first.infer_sample(ROW)


def test_configuration_that_is_given_is_not_asked_for(torchserve: TensorServer) -> None:
    config = TritonModelConfig(MODEL, max_batch_size=2, inputs=[TensorSpec("INPUT_1", (1,), np.int32)])
    with ModelClient(torchserve.url, MODEL, model_config=config, ensure_model_is_ready=False) as client:
        client.infer_batch(FIVE[:2])
    assert torchserve.paths == [f"POST /predictions/{MODEL}"]
    with ModelClient(torchserve.url, MODEL, model_config=config) as client:
        client.infer_batch(FIVE[:2])
    assert torchserve.paths[1:] == [
        f"GET /v2/models/{MODEL}/ready",
        f"GET /predictions/{MODEL}",
        f"POST /predictions/{MODEL}",
    ]


def test_closed_clients_say_so(torchserve: TensorServer) -> None:
    client = ModelClient(torchserve.url, MODEL)
    client.close()
    for call in (lambda: client.infer_sample(ROW), lambda: client.model_config, lambda: client.wait_for_server(9)):
        with pytest.raises(PyTritonClientClosedError):
            call()
    futures = FuturesModelClient(torchserve.url, MODEL)
    futures.close()
    futures.close()
    with pytest.raises(PyTritonClientClosedError):
        futures.infer_sample(ROW)


def test_close_wakes_who_waits_for_a_model(torchserve: TensorServer) -> None:
    client = ModelClient(torchserve.url, "nobody", init_timeout_s=600)
    threading.Timer(0.3, client.close).start()
    started_s = time.monotonic()
    with pytest.raises(PyTritonClientClosedError):
        client.infer_sample(ROW)
    assert time.monotonic() - started_s < 30


def test_threads_ask_what_a_model_takes_once(torchserve: TensorServer) -> None:
    with FuturesModelClient(torchserve.url, MODEL, max_workers=8) as client:
        futures = [client.infer_sample(ROW) for _ in range(40)]
        assert [future.result()["OUTPUT_1"].tolist() for future in futures] == [[7]] * 40
    assert torchserve.paths.count(f"GET /predictions/{MODEL}") == 2


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


@pytest.mark.parametrize("limits", [{"max_workers": 0}, {"max_queue_size": 0}, {"max_workers": -1}])
def test_limits_that_leave_no_place_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FuturesModelClient("localhost", MODEL, **limits)  # type: ignore[arg-type]


def test_no_limits_are_none(torchserve: TensorServer) -> None:
    with FuturesModelClient(torchserve.url, MODEL, max_workers=None, max_queue_size=None) as client:
        assert client.infer_sample(ROW).result()["OUTPUT_1"].tolist() == [7]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost", ("http://localhost:8000", "http://localhost:8080")),
        ("http://models", ("http://models:8000", "http://models:8080")),
        ("[::1]", ("http://[::1]:8000", "http://[::1]:8080")),
        ("localhost:8001", ("http://localhost:8001",)),
        ("HTTP://10.0.0.1:80/models/", ("http://10.0.0.1:80/models",)),
        ("https://models.example", ("https://models.example",)),
    ],
)
def test_address_is_what_pytriton_takes(url: str, expected: tuple[str, ...]) -> None:
    assert candidates(url) == expected


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("grpc://localhost:8001", "speaks HTTP: .*localhost:8000.* tritonclient.grpc"),
        ("grpc://localhost", "speaks HTTP"),
        ("ftp://localhost", "not ftp"),
        ("localhost:port", "is no address"),
        ("localhost:99999", "is no address"),
        ("", "is no address"),
        ("http://", "is no address"),
        ("a b", "is no address"),
        ("http://name:word@host", "is no address"),
        (8000, "not int"),
    ],
)
def test_address_that_is_none_is_refused_at_once(url: Any, words: str) -> None:
    for client_class in (ModelClient, FuturesModelClient, ChunkingClient):
        with pytest.raises(PyTritonClientInvalidUrlError, match=words) as raised:
            client_class(url, MODEL)
        assert isinstance(raised.value, ValueError)


def test_address_without_a_port_is_the_gateways_and_else_torchserves(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_ports(2)
    monkeypatch.setattr(addresses, "TUNING", Tuning((first, second)))
    monkeypatch.setattr(candidates, "__defaults__", (Tuning((first, second)),))
    with serving(TensorServer(), second) as torchserve, ModelClient("127.0.0.1", MODEL) as client:
        assert torchserve.asked == []
        client.infer_sample(ROW)
        client.infer_sample(ROW)
        assert torchserve.paths.count("GET /v2/health/live") == 1
        before = len(torchserve.asked)
        with serving(TensorServer("gateway"), first) as gateway:
            # It was decided once; who comes now finds the gateway.
            client.infer_sample(ROW)
            assert (gateway.asked, len(torchserve.asked)) == ([], before + 1)
            with ChunkingClient("127.0.0.1", MODEL) as chunking:
                assert len([future.result() for future in chunking.infer_batch(FIVE)]) == 3
            assert sorted(gateway.rows) == [1, 2, 2]
            assert len(torchserve.asked) == before + 1


def test_nothing_at_any_port_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_ports(2)
    monkeypatch.setattr(candidates, "__defaults__", (Tuning((first, second)),))
    with (
        ModelClient("127.0.0.1", MODEL, init_timeout_s=0.2) as client,
        pytest.raises(PyTritonClientTimeoutError, match=f"at http://127.0.0.1:{first} or http://127.0.0.1:{second}"),
    ):
        client.infer_sample(ROW)


def test_server_that_is_not_trusted_is_an_error_of_its_own(listen: Listen, certificates: Certificates) -> None:
    listener = listen(answering, certificates.server())
    with ModelClient(listener.url, MODEL, init_timeout_s=60) as client, pytest.raises(PyTritonClientError, match="TLS"):
        client.infer_sample(ROW)
