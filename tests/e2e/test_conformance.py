"""The Open Inference Protocol through the gateway, as docs/reference/open-inference.md has it row by row.

tritonclient http, http.aio, grpc, grpc.aio; bodies by hand where a client would not send them
    -> Envoy -> a real TorchServe with a model in classic mode
             -> processes of deploy.hosts.serve, which are adaptive: an encoder, and a model of every datatype
"""

import asyncio
import contextlib
import inspect
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from google.protobuf.wrappers_pb2 import BytesValue
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from deploy.nodes.run.server import Server
from load import sandbox
from load.sandbox import Sandbox
from tests.e2e import echo
from tests.e2e.conftest import Make, Registrations, send, worker_pid
from tests.hosts import Host, run_hosts
from tests.waiting import until
from torchserve_client import Client
from torchserve_client.gateway import Gateway

TEXTS = ("Good morning, how are you?", "기준금리를 동결했다.")
TIMEOUT_S = 60
# Adaptive, under names that its owner has given its tensors, version 1; and classic, version 1.0.
EMBEDDING, LANGUAGES = "embedding", "language-id"
MODELS = (EMBEDDING, LANGUAGES, echo.NAME)
SIZE = 384
KEY = "a-key-of-the-tests"
NO: tuple[object, ...] = (False, {}, {"ready": False})


CLIENTS: dict[str, Any] = {
    "http": triton_http.InferenceServerClient,
    "http.aio": triton_http_aio.InferenceServerClient,
    "grpc": triton_grpc.InferenceServerClient,
    "grpc.aio": triton_grpc_aio.InferenceServerClient,
}


class Clients:
    """Triton's four clients as one: a call of any of them, waited for where it is a coroutine."""

    def __init__(self, http: str, grpc_address: str, headers: Mapping[str, str] | None = None) -> None:
        self.http, self.grpc, self.headers = http, grpc_address, dict(headers or {})

    def call(self, which: str, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of one client; over gRPC what it returns is JSON too, where it has the choice."""

        async def ask() -> Any:
            client = CLIENTS[which](self.grpc if is_grpc(which) else self.http.removeprefix("http://"))
            try:
                bound = getattr(client, method)
                if self.headers:
                    # gRPC's metadata has its names in lower case.
                    named["headers"] = {name.lower(): value for name, value in self.headers.items()}
                if is_grpc(which) and "as_json" in inspect.signature(bound).parameters:
                    named["as_json"] = True
                return await waited(bound(*arguments, **named))
            finally:
                await waited(client.close())

        return asyncio.run(ask())

    def infer(self, which: str, model: str, tensors: Mapping[str, NDArray[Any]], **named: Any) -> Any:
        """Infer; `outputs` are names, all binary."""
        module: Any = triton_grpc if is_grpc(which) else triton_http
        inputs = [
            module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)).set_data_from_numpy(array)
            for name, array in tensors.items()
        ]
        if "outputs" in named:
            named["outputs"] = [module.InferRequestedOutput(name) for name in named["outputs"]]
        return self.call(which, "infer", model, inputs, **named)

    def post(self, path: str, body: bytes | dict[str, Any], **headers: str) -> requests.Response:
        """Send a body as curl would; names of headers have _ for -."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        named = {"Content-Type": "application/json"} | {key.replace("_", "-"): value for key, value in headers.items()}
        return requests.post(f"{self.http}{path}", data=data, headers={**self.headers, **named}, timeout=TIMEOUT_S)

    def get(self, path: str) -> int:
        return requests.get(f"{self.http}{path}", headers=self.headers, timeout=TIMEOUT_S).status_code


def form(content: bytes, head: bytes = b"", name: bytes = b"data") -> bytes:
    return b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n--b--\r\n' % (name, head, content)


async def waited(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


def is_grpc(which: str) -> bool:
    return which.startswith("grpc")


def texts(*sent: str) -> NDArray[np.object_]:
    """A BYTES tensor of shape [B, 1]."""
    return np.array([[text.encode()] for text in sent or TEXTS], object)


@pytest.fixture(scope="module")
def models(archive: Make, registrations: Registrations) -> tuple[str, ...]:
    registrations.serve(LANGUAGES, archive(LANGUAGES), {"batch_size": 8, "max_batch_delay_ms": 1, "workers": 1})
    return MODELS


@pytest.fixture(scope="module")
def hosts(archive: Make, model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    names = archive(EMBEDDING), archive(echo.entry(tmp_path_factory.mktemp("echo")))
    with run_hosts(*(model_store / name for name in names)) as running:
        yield running


@pytest.fixture(scope="module")
def edge(server: Server, models: tuple[str, ...], hosts: list[Host]) -> Iterator[Sandbox]:
    nodes = [host.node(f"host-{number}") for number, host in enumerate(hosts)]
    with sandbox.run_gateway([sandbox.make_node(server), *nodes]) as started:
        clients = Clients(started.http, started.grpc)
        until(lambda: clients.get("/v2/health/ready") == 200)
        for name in models:
            until(lambda name=name: clients.call("http", "get_model_metadata", name)["inputs"])  # type: ignore[misc]
        yield started


@pytest.fixture(scope="module")
def lab(edge: Sandbox) -> Clients:
    return Clients(edge.http, edge.grpc)


@pytest.fixture(scope="module")
def managed(server: Server, models: tuple[str, ...]) -> Iterator[Clients]:
    """A gateway that lets through who loads and unloads models: those who have a key."""
    keys = [{"client": "tests", "key": KEY}]
    with sandbox.run_gateway([sandbox.make_node(server)], keys=keys, management=True) as gateway:
        yield Clients(gateway.http, gateway.grpc, {"Authorization": f"Bearer {KEY}"})


@pytest.fixture(params=CLIENTS)
def which(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def worker(server: Server, models: tuple[str, ...]) -> int:
    """The process before the first test: it is there at the end, or something that was sent has ended it."""
    return worker_pid(server, LANGUAGES)


def assert_rejected(which: str, call: Callable[[], Any], http: int, rpc: str) -> str:
    with pytest.raises(InferenceServerException) as caught:
        call()
    assert caught.value.status() == (f"StatusCode.{rpc}" if is_grpc(which) else str(http)), caught.value
    assert caught.value.message()
    return str(caught.value.message())


def test_health_is_that_of_server_model_and_version(lab: Clients, which: str) -> None:
    assert lab.call(which, "is_server_live") in (True, {"live": True})
    assert lab.call(which, "is_server_ready") in (True, {"ready": True})
    for version in ("", "1", "1.0"):
        assert lab.call(which, "is_model_ready", LANGUAGES, version) in (True, {"ready": True})
    for name, version in (("nobody", ""), (LANGUAGES, "7")):
        try:
            assert lab.call(which, "is_model_ready", name, version) in NO
        except InferenceServerException as error:
            assert error.status() in ("404", "StatusCode.NOT_FOUND")


def test_metadata_and_configuration_are_those_of_the_loaded_model(lab: Clients, which: str) -> None:
    metadata = lab.call(which, "get_server_metadata")
    assert (metadata["name"], bool(metadata["version"])) == ("torchserve-batching", True)
    assert {"binary_tensor_data", "parameters", "model_configuration", "statistics"} <= {*metadata["extensions"]}
    assert not {"trace", "logging", "system_shared_memory", "cuda_shared_memory"} & {*metadata["extensions"]}

    def described(each: dict[str, Any], shape: str) -> list[Any]:
        # protobuf's JSON has its 64 bits as text, and leaves an empty name of a type out.
        kind = each.get("datatype") or each["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES")
        return [each["name"], kind, [int(size) for size in each[shape]]]

    for version in ("", "1", "1.0"):
        metadata = lab.call(which, "get_model_metadata", LANGUAGES, version)
        assert (metadata["name"], metadata["versions"]) == (LANGUAGES, ["1.0"])
    # Inputs keep their order.
    declared = [[name, name, echo.SHAPE] for name in echo.DATATYPES]
    for name, inputs, outputs in (
        (EMBEDDING, [["input_text", "BYTES", [-1, 1]]], [["output__0", "FP32", [-1, SIZE]]]),
        (echo.NAME, declared, declared),
    ):
        metadata = lab.call(which, "get_model_metadata", name)
        assert (metadata["name"], metadata["versions"]) == (name, ["1"])
        assert [described(each, "shape") for each in metadata["inputs"]] == inputs
        assert [described(each, "shape") for each in metadata["outputs"]] == outputs
    assert lab.call(which, "get_model_metadata", EMBEDDING)["platform"] == "torchserve_openvino"
    config = lab.call(which, "get_model_config", EMBEDDING)
    config = config.get("config", config)
    assert (config["name"], "dynamic_batching" in config) == (EMBEDDING, True)
    assert [described(each, "dims") for each in config["input"]] == [["input_text", "BYTES", [1]]]
    assert [described(each, "dims") for each in config["output"]] == [["output__0", "FP32", [SIZE]]]
    # As many rows as the configuration says, and no more.
    rows = int(config["max_batch_size"])
    found = lab.infer(which, EMBEDDING, {"input_text": texts(*["A text."] * rows)})
    assert found.as_numpy("output__0").shape == (rows, SIZE)
    too_many = {"input_text": texts(*["A text."] * (rows + 1))}
    said = assert_rejected(which, lambda: lab.infer(which, EMBEDDING, too_many), 413, "RESOURCE_EXHAUSTED")
    assert str(rows) in said


def test_statistics_count_what_was_inferred_and_name_every_model(lab: Clients) -> None:
    def counted(which: str) -> list[int]:
        (found,) = lab.call(which, "get_inference_statistics", LANGUAGES)["model_stats"]
        assert found["name"] == LANGUAGES
        counts = [found.get("inference_count"), found.get("execution_count")]
        return [int(each or 0) for each in (*counts, found["inference_stats"]["success"].get("count"))]

    before = [counted(which) for which in CLIENTS]
    for which, some in product(CLIENTS, (("One.", "Two.", "Three."), ("One.",))):
        lab.infer(which, LANGUAGES, {"text": texts(*some)})
    # A handler reports once a second, and the gateway reads it every other: of tests before some may be counted now.
    count = len(CLIENTS)
    least = [[items + 4 * count, runs + 1, answers + 2 * count] for items, runs, answers in before]
    until(lambda: all(map(operator.ge, chain(*map(counted, CLIENTS)), chain(*least))))
    for which in CLIENTS:
        found = lab.call(which, "get_inference_statistics")["model_stats"]
        assert {each["name"] for each in found} == {*MODELS}


def test_inference_is_that_of_predictions_by_every_client_in_either_mode(lab: Clients, which: str) -> None:
    alone = [lab.post(f"/predictions/{EMBEDDING}", text.encode(), Content_Type="text/plain") for text in TEXTS]
    plain = np.array([answer.json() for answer in alone], np.float32)
    algorithm = "compression_algorithm" if is_grpc(which) else "request_compression_algorithm"
    ways: list[dict[str, Any]] = [{"outputs": ["output__0"], "model_version": "1"}, {"request_id": "뉴스-7"}]
    for named in (*ways, {algorithm: "gzip"}, {algorithm: "deflate"}):
        found = lab.infer(which, EMBEDDING, {"input_text": texts()}, **named)
        vectors = found.as_numpy("output__0")
        assert (vectors.dtype, vectors.shape) == (np.float32, (2, SIZE))
        # Elements of unit vectors; bf16 of another batch moves them by some thousandths.
        np.testing.assert_allclose(vectors, plain, atol=0.02)
        response = found.get_response(as_json=True) if is_grpc(which) else found.get_response()
        assert (response["model_name"], response["model_version"]) == (EMBEDDING, "1")
        assert response.get("id", "") == named.get("request_id", "")
    # A model's only input and only output by any name.
    found = lab.infer(which, EMBEDDING, {"INPUT0": texts()}, outputs=["whatever"])
    assert found.as_numpy("whatever").shape == (2, SIZE)
    for version in ("1", "1.0"):
        found = lab.infer(which, LANGUAGES, {"text": texts()}, model_version=version)
        assert found.as_numpy("label")[:, 0].tolist() == [b"en", b"ko"]
    # Options, as parameters or as a tensor with a value for each row.
    for named in ({"parameters": {"top_k": 2}}, {}):
        rows = {} if named else {"top_k": np.array([[2], [1]])}
        found = lab.infer(which, LANGUAGES, {"text": texts(), **rows}, **named).as_numpy("label")
        assert (found.shape, found[:, 0].tolist(), found[1, 1] == b"") == ((2, 2), [b"en", b"ko"], not named)


def test_row_that_fails_leaves_the_others_their_answers(lab: Clients, which: str) -> None:
    found = lab.infer(which, LANGUAGES, {"text": texts("Good morning, how are you?", " ")})
    assert found.as_numpy("label")[:, 0].tolist() == [b"en", b""]
    good, bad = found.as_numpy("error").reshape(-1).tolist()
    assert (good, json.loads(bad)["type"]) == (b"", "EmptyInput")


def test_tensors_of_every_datatype_come_back_as_they_were_sent(lab: Clients, which: str) -> None:
    for sent in (echo.everything(), echo.everything(echo.MOST_ROWS, 0)):
        found = lab.infer(which, echo.NAME, sent)
        for name, array in sent.items():
            echo.assert_same(found.as_numpy(name), array)
    # Those that are asked for, in that order.
    found = lab.infer(which, echo.NAME, sent, outputs=["FP64", "BYTES", "BOOL"])
    response = found.get_response(as_json=True) if is_grpc(which) else found.get_response()
    assert [each["name"] for each in response["outputs"]] == ["FP64", "BYTES", "BOOL"]


def test_wrong_request_is_an_error_that_names_what_is_wrong(lab: Clients, which: str) -> None:
    wrong = {**echo.everything(), "FP32": np.zeros((2, 4, 2))}
    for sent, named, said in (
        (wrong, {}, "FP32: FP32 [-1, -1, 2] is expected; FP64 [2, 4, 2] was sent."),
        (echo.everything(), {"outputs": ["logits"]}, "logits"),
    ):
        call = partial(lab.infer, which, echo.NAME, sent, **named)
        assert said in assert_rejected(which, call, 400, "INVALID_ARGUMENT")
    for name, version in (("nobody", ""), ("nobody", "1"), (LANGUAGES, "7")):
        questions = ("get_model_metadata", "get_model_config", "get_inference_statistics")
        calls = [partial(lab.call, which, method, name, version) for method in questions]
        for call in (partial(lab.infer, which, name, {"text": texts()}, model_version=version), *calls):
            assert (version if name == LANGUAGES else name) in assert_rejected(which, call, 404, "NOT_FOUND")


FRENCH = "Déjà vu : où êtes-vous allés à Noël ?"
DOCUMENT = json.dumps({"text": FRENCH}).encode()
FORM = "multipart/form-data; boundary=b"
URL_ENCODED = "application/x-www-form-urlencoded"
JSON_PART = b"\r\nContent-Type: application/json"
# Bodies for a classic model of texts, and the label or error of each, at TorchServe and through the gateway.
BODIES: list[tuple[str | None, bytes, str]] = [
    *[(kind, DOCUMENT, "fr") for kind in ("TEXT/Json", "application/vnd.api+json; v=1", None)],
    ("application/octet-stream", DOCUMENT, "fr"),
    ("application/json", b"\xef\xbb\xbf" + DOCUMENT, "fr"),
    ("application/octet-stream", FRENCH.encode(), "fr"),
    ("text/plain; charset=iso-8859-1", FRENCH.encode("latin-1"), "fr"),
    ("text/plain; charset=klingon", FRENCH.encode(), "UnsupportedMedia"),
    ("image/jpeg", DOCUMENT, "UnsupportedMedia"),
    ("multipart/mixed; boundary=b", DOCUMENT, "UnsupportedMedia"),
    (URL_ENCODED, DOCUMENT, "EmptyInput"),
    (URL_ENCODED, b"data=Bonjour+tout+le+monde&top_k=2", "fr"),
    (FORM, form(DOCUMENT, JSON_PART), "fr"),
    (FORM, form(FRENCH.encode()), "fr"),
]


@pytest.mark.parametrize("is_direct", [True, False])
def test_media_type_selects_the_reader_of_a_body(server: Server, lab: Clients, is_direct: bool) -> None:
    place = server.settings.inference_url if is_direct else lab.http
    for kind, body, expected in BODIES:
        headers = {"Content-Type": kind} if kind else {}
        found = requests.post(f"{place}/predictions/{LANGUAGES}", body, headers=headers, timeout=TIMEOUT_S).json()
        assert (found[0]["label"] if isinstance(found, list) else found["type"]) == expected, (kind, body)


def test_tensors_and_embeddings_are_json_whatever_their_type(lab: Clients) -> None:
    """As in Triton; `curl -d` calls each body a form."""
    tensor = {"name": "input_text", "shape": [1, 1], "datatype": "BYTES", "data": [FRENCH]}
    # Clients of MLServer send these parameters.
    tensors = json.dumps({"inputs": [tensor], "parameters": {"content_type": "str", "headers": {}}}).encode()
    texts_ = json.dumps({"model": EMBEDDING, "input": FRENCH}).encode()
    kinds = ("application/json", URL_ENCODED, "Multipart/Form-Data; boundary=b", "text/plain;charset=UTF-8")
    for kind in (*kinds, "application/octet-stream"):
        (output,) = lab.post(f"/v2/models/{EMBEDDING}/infer", tensors, Content_Type=kind).json()["outputs"]
        assert output["shape"] == [1, SIZE], kind
        (vector,) = lab.post("/v1/embeddings", texts_, Content_Type=kind).json()["data"]
        np.testing.assert_allclose(vector["embedding"], output["data"], atol=2e-2)
    with Client(lab.http) as client:
        np.testing.assert_allclose(client.embed(EMBEDDING, [FRENCH]), [output["data"]], atol=2e-2)
    wanted = {"inputs": [tensor], "outputs": [{"name": "output__0", "parameters": {"classification": 2}}]}
    rejected = lab.post(f"/v2/models/{EMBEDDING}/infer", wanted)
    assert (rejected.status_code, "classification" in rejected.json()["error"]) == (400, True)


def test_description_and_explanation_of_torchserve_are_no_predictions(
    server: Server, models: tuple[str, ...], lab: Clients
) -> None:
    """Of a description of an adaptive model TorchServe never lets go: docs/explanation/adaptive.md warns of it."""
    described = f"{server.settings.management_url}/models/{LANGUAGES}?customized=true"
    (found,) = requests.get(described, timeout=TIMEOUT_S).json()
    assert LANGUAGES in json.dumps(found["customizedMetadata"])
    rejected = requests.post(f"{server.settings.inference_url}/explanations/{LANGUAGES}", DOCUMENT, timeout=TIMEOUT_S)
    assert (rejected.status_code, "explanations" in rejected.json()["message"]) == (501, True)
    # A client that sends the header of a description gets its prediction.
    for name in (EMBEDDING, LANGUAGES):
        assert isinstance(lab.post(f"/predictions/{name}", DOCUMENT, describe="True").json(), list)


UNSUPPORTED: list[tuple[Any, ...]] = [
    *(("get_trace_settings",), ("update_trace_settings", None, {"trace_rate": "1"}), ("get_log_settings",)),
    *(("update_log_settings", {"log_info": False}), ("get_system_shared_memory_status",)),
    *(("register_system_shared_memory", "region", "/region", 64), ("get_cuda_shared_memory_status",)),
    *(("get_model_repository_index",), ("load_model", LANGUAGES), ("unload_model", LANGUAGES)),
]


def test_what_is_not_supported_or_not_let_through_is_rejected(lab: Clients, which: str) -> None:
    for method, *arguments in UNSUPPORTED:
        assert_rejected(which, partial(lab.call, which, method, *arguments), 404, "UNIMPLEMENTED")
    assert lab.infer(which, LANGUAGES, {"text": texts()}).as_numpy("label").shape[0] == 2


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def test_calls_of_torchserves_own_grpc_are_answered_like_http(server: Server, worker: int) -> None:
    assert_grpc_answers_like_http(server, LANGUAGES)
    assert worker_pid(server, LANGUAGES) == worker


def assert_grpc_answers_like_http(server: Server, name: str) -> None:
    """Fail unless TorchServe's gRPC does; a streamed call whose response is not a stream would end the worker."""
    lines = dict(line.split("=", 1) for line in server.config.read_text().splitlines() if "=" in line)
    service = "/org.pytorch.serve.grpc.inference.InferenceAPIsService"
    with grpc.insecure_channel(f"127.0.0.1:{lines['grpc_inference_port']}") as channel:
        predict = channel.unary_unary(f"{service}/Predictions")
        stream = channel.unary_stream(f"{service}/StreamPredictions")
        for text in (TEXTS[0].encode(), b"\xff\xfe"):
            # PredictionsRequest: model_name = 1, input = 3, a map of names to bytes.
            asked = field(1, name.encode()) + field(3, field(1, b"data") + field(2, text))
            answers = [predict(asked, timeout=TIMEOUT_S)]
            for _ in range(2):
                answers += stream(asked, timeout=TIMEOUT_S)
            # PredictionResponse has one field, like this message: prediction = 1.
            documents = [json.loads(BytesValue.FromString(answer).value) for answer in answers]
            body = send(server, name, text).body
            expected = pytest.approx(body, abs=0.02) if len(body) == SIZE else body
            assert len(documents) == 3
            assert all(document == expected for document in documents)
        # A form may name its field like a header, and HTTP's answers are still no streams.
        assert send(server, name, form(b"Good morning.", name=b"explain"), FORM).status == 200


def test_management_lists_loads_and_unloads_where_it_is_let_through(managed: Clients, server: Server) -> None:
    """tests/deploy/gateway/test_protocol.py unloads over HTTP, too."""

    def states() -> set[str | None]:
        listed = [managed.call(which, "get_model_repository_index") for which in ("http", "grpc")]
        models = [found if isinstance(found, list) else found.get("models", []) for found in listed]
        return {{each["name"]: each.get("state") for each in found}.get(LANGUAGES) for found in models}

    until(lambda: states() == {"READY"})
    managed.call("grpc", "unload_model", LANGUAGES)
    assert LANGUAGES not in server.management.models()
    until(lambda: "READY" not in states())
    for which in ("http", "grpc"):
        managed.call(which, "load_model", LANGUAGES)
    until(lambda: states() == {"READY"})
    assert_rejected("http", partial(managed.call, "http", "unload_model", "nobody"), 404, "NOT_FOUND")
    body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["Hi."]}]}
    until(lambda: managed.post(f"/v2/models/{LANGUAGES}/infer", body).status_code == 200)


def test_nothing_that_was_sent_has_ended_a_process_or_envoy(hosts: list[Host], edge: Sandbox) -> None:
    assert [host.process.poll() for host in hosts] == [None] * 2
    assert psutil.pid_exists(int((edge.state_dir / "envoy.pid").read_text()))


def test_host_that_drains_or_dies_takes_only_its_model_away(lab: Clients, hosts: list[Host], edge: Sandbox) -> None:
    """The last test: its host does not come back."""

    def counted(model: str) -> set[str]:
        text = requests.get(edge.metrics, timeout=TIMEOUT_S).text
        return {*re.findall(rf'(handler_\w+)\{{node="[^"]+",ModelName="{model}"', text)}

    def statuses() -> list[int]:
        return [lab.post(f"/predictions/{name}", DOCUMENT).status_code for name in (EMBEDDING, LANGUAGES)]

    # Adaptive hosts count what the classic worker counts, and more.
    until(lambda: len(counted(EMBEDDING)) > 30 and counted(EMBEDDING) >= counted(LANGUAGES))
    with contextlib.closing(Gateway(edge.control)) as control:
        for is_draining, status in ((True, 503), (False, 200)):
            control.drain("host-0", is_draining=is_draining)
            until(lambda status=status: statuses() == [status, 200])  # type: ignore[misc]
    hosts[0].kill()
    until(lambda: statuses() == [503, 200])
    assert lab.post(f"/predictions/{EMBEDDING}", DOCUMENT).headers["Retry-After"] >= "1"
    until(lambda: lab.get(f"/v2/models/{EMBEDDING}/ready") == 503)
