"""The Open Inference Protocol through the gateway: each row of docs/conformance.md is one test of this module.

tritonclient http, http.aio, grpc, grpc.aio; curl where a client would not send it -> Envoy -> a real TorchServe

What a row says of all models is shown on one; tests/test_conformance.py holds rows and tests together.
"""

import asyncio
import gzip
import inspect
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from deploy.gateway import sandbox
from deploy.server import Server

TEXTS = ("Good morning, how are you?", "기준금리를 동결했다.")
TIMEOUT_S = 60
EMBEDDING, MINILM, TOKENIZER = "sentence-embedding", "embedding", "tokenizer"
LANGUAGES, ADAPTIVE = "language-id", "sentence-embedding-adaptive"
# With the start of five models in the first test's.
pytestmark = pytest.mark.timeout(300)

MODELS = (EMBEDDING, MINILM, TOKENIZER, LANGUAGES, ADAPTIVE)
CLIENTS = ("http", "http.aio", "grpc", "grpc.aio")
SIZE = 384
JSON_REQUEST = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["Good morning."]}]}
# gRPC's numbers of statuses, as its specification has them.
INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED, UNAVAILABLE = 3, 5, 12, 14


class Clients:
    """Triton's four clients as one: a call of any of them, waited for where it is a coroutine."""

    def __init__(self, http: str, grpc_address: str, headers: Mapping[str, str] | None = None) -> None:
        """Describe where they connect to.

        Args:
            http: HOST:PORT.
            grpc_address: HOST:PORT.
            headers: sent with every request.
        """
        self._headers = dict(headers or {})
        self._made = {
            "http": lambda: triton_http.InferenceServerClient(http),
            "http.aio": lambda: triton_http_aio.InferenceServerClient(http),
            "grpc": lambda: triton_grpc.InferenceServerClient(grpc_address),
            "grpc.aio": lambda: triton_grpc_aio.InferenceServerClient(grpc_address),
        }

    def call(self, which: str, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of one client; over gRPC what it returns is JSON too, where it has the choice."""

        async def ask() -> Any:
            client = self._made[which]()
            try:
                bound = getattr(client, method)
                if self._headers:
                    # gRPC's metadata has its names in lower case.
                    named["headers"] = {name.lower(): value for name, value in self._headers.items()}
                if which.startswith("grpc") and "as_json" in inspect.signature(bound).parameters:
                    named["as_json"] = True
                found = bound(*arguments, **named)
                return await found if inspect.isawaitable(found) else found
            finally:
                closing = client.close()
                if inspect.isawaitable(closing):
                    await closing

        return asyncio.run(ask())

    def infer(self, which: str, model: str, tensors: dict[str, NDArray[Any]], **named: Any) -> Any:
        """Infer; `outputs` are names, all binary."""
        module: Any = triton_grpc if which.startswith("grpc") else triton_http
        inputs = [
            module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)).set_data_from_numpy(array)
            for name, array in tensors.items()
        ]
        if "outputs" in named:
            named["outputs"] = [module.InferRequestedOutput(name) for name in named["outputs"]]
        return self.call(which, "infer", model, inputs, **named)


def texts(*sent: str) -> NDArray[np.object_]:
    """A BYTES tensor of shape [B, 1]."""
    return np.array([[text.encode()] for text in sent or TEXTS], object)


class Lab(NamedTuple):
    """What the tests of this module share.

    Attributes:
        http: http://HOST:PORT of the gateway.
        grpc: HOST:PORT.
        clients: Triton's, connected to it.
        headers: sent with every request.
    """

    http: str
    grpc: str
    clients: Clients
    headers: Mapping[str, str] = {}

    def post(self, path: str, body: bytes | str | dict[str, Any], **headers: str) -> requests.Response:
        """Send a body as curl would; names of headers have _ for -."""
        data = json.dumps(body) if isinstance(body, dict) else body
        named = {
            **self.headers,
            "Content-Type": "application/json",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        return requests.post(f"{self.http}{path}", data=data, headers=named, timeout=TIMEOUT_S)

    def get(self, path: str) -> requests.Response:
        """Ask as curl would."""
        return requests.get(f"{self.http}{path}", headers=self.headers, timeout=TIMEOUT_S)

    def rpc(self, method: str, request: Any, **named: Any) -> Any:
        """Call a method of the service with any message; returns its answer."""
        with triton_grpc.InferenceServerClient(self.grpc) as client:
            return getattr(client._client_stub, method)(request, timeout=TIMEOUT_S, **named)


@pytest.fixture(scope="module")
def models(archive: Callable[..., str], server: Server) -> Iterator[None]:
    """The models of this module, registered, and removed at the end."""
    for name in server.management.models():
        server.management.unregister(name)
    for name in MODELS:
        server.register(name, archive(name), batch_size=8, max_batch_delay_ms=1, workers=1)
    yield
    for name in server.management.models():
        server.management.unregister(name)


@pytest.fixture(scope="module")
def lab(server: Server, models: None) -> Iterator[Lab]:
    with sandbox.started([sandbox.node_of(server)]) as gateway:
        made = Lab(gateway.http, gateway.grpc, Clients(gateway.http.removeprefix("http://"), gateway.grpc))
        wait_for(lambda: made.get("/v2/health/ready").status_code, lambda status: status == 200)
        yield made


@pytest.fixture(scope="module")
def managed(server: Server, models: None) -> Iterator[Lab]:
    """A gateway that lets through who loads and unloads models: those who have a key."""
    key = "a-key-of-the-tests"
    keys = [{"client": "tests", "key": key}]
    with sandbox.started([sandbox.node_of(server)], keys=keys, management=True) as gateway:
        bearer = {"Authorization": f"Bearer {key}"}
        yield Lab(
            gateway.http, gateway.grpc, Clients(gateway.http.removeprefix("http://"), gateway.grpc, bearer), bearer
        )


@pytest.fixture
def unready(lab: Lab, server: Server) -> Iterator[str]:
    """A model whose workers are gone, until the test is over."""
    server.management.scale(LANGUAGES, 0)
    yield LANGUAGES
    server.management.scale(LANGUAGES, 1)
    wait_for(lambda: lab.get("/v2/health/ready").status_code, lambda status: status == 200)


def message(answer: requests.Response) -> str:
    """What an error in the protocol's form says."""
    assert answer.headers["Content-Type"].startswith("application/json")
    document = answer.json()
    assert list(document) == ["error"]
    return str(document["error"])


def refused(which: str, error: InferenceServerException, http: int, rpc: str) -> str:
    """Hold an exception of a client against the status that it should have; returns its message."""
    assert error.status() == (f"StatusCode.{rpc}" if which.startswith("grpc") else str(http)), error
    assert error.message()
    return str(error.message())


# -- health --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", CLIENTS)
def test_server_is_live(lab: Lab, which: str) -> None:
    assert lab.clients.call(which, "is_server_live") in (True, {"live": True})


@pytest.mark.parametrize("which", CLIENTS)
def test_server_is_ready_while_all_models_are(lab: Lab, which: str) -> None:
    assert lab.clients.call(which, "is_server_ready") in (True, {"ready": True})


@pytest.mark.parametrize("which", CLIENTS)
@pytest.mark.parametrize("version", ["", "1", "1.0"])
def test_model_is_ready_by_either_name_of_its_version(lab: Lab, which: str, version: str) -> None:
    assert lab.clients.call(which, "is_model_ready", EMBEDDING, version) in (True, {"ready": True})


@pytest.mark.parametrize("which", CLIENTS)
def test_model_that_there_is_not_is_not_ready(lab: Lab, which: str) -> None:
    for name, version in (("nobody", ""), (EMBEDDING, "7")):
        try:
            assert lab.clients.call(which, "is_model_ready", name, version) in (False, {}, {"ready": False})
        except InferenceServerException as error:
            refused(which, error, 404, "NOT_FOUND")


# -- metadata ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", CLIENTS)
def test_server_metadata_names_its_extensions(lab: Lab, which: str) -> None:
    metadata = lab.clients.call(which, "get_server_metadata")
    assert metadata["name"]
    assert metadata["version"]
    assert {"binary_tensor_data", "parameters", "model_configuration", "statistics"} <= {*metadata["extensions"]}
    assert not {"trace", "logging", "system_shared_memory", "cuda_shared_memory"} & {*metadata["extensions"]}


@pytest.mark.parametrize("which", CLIENTS)
@pytest.mark.parametrize("version", ["", "1", "1.0"])
def test_model_metadata_is_that_of_the_loaded_model(lab: Lab, which: str, version: str) -> None:
    metadata = lab.clients.call(which, "get_model_metadata", MINILM, version)
    assert metadata["name"] == MINILM
    assert metadata["versions"] == ["1"]
    assert metadata["platform"]
    assert [tensor(each) for each in metadata["inputs"]] == [("input_text", "BYTES", [-1, 1])]
    assert [tensor(each) for each in metadata["outputs"]] == [("output__0", "FP32", [-1, SIZE])]


def tensor(described: dict[str, Any]) -> tuple[str, str, list[int]]:
    """Name, datatype and shape; protobuf's JSON has its 64 bits as text."""
    return described["name"], described["datatype"], [int(size) for size in described["shape"]]


@pytest.mark.parametrize("which", CLIENTS)
def test_model_configuration_says_what_a_request_may_carry(lab: Lab, which: str) -> None:
    config = lab.clients.call(which, "get_model_config", MINILM)
    config = config.get("config", config)
    assert config["name"] == MINILM
    assert int(config["max_batch_size"]) > 1
    assert "dynamic_batching" in config
    (given,), (returned,) = config["input"], config["output"]
    assert (given["name"], given["data_type"], [int(size) for size in given["dims"]]) == (
        "input_text", "TYPE_STRING", [1],
    )  # fmt: skip
    assert (returned["name"], returned["data_type"], [int(size) for size in returned["dims"]]) == (
        "output__0", "TYPE_FP32", [SIZE],
    )  # fmt: skip
    rows = int(config["max_batch_size"])
    found = lab.clients.infer(which, MINILM, {"input_text": texts(*(["A text."] * rows))})
    assert found.as_numpy("output__0").shape == (rows, SIZE)


@pytest.mark.parametrize("which", CLIENTS)
def test_statistics_count_what_was_inferred_and_never_fall(lab: Lab, which: str) -> None:
    def counted() -> tuple[int, int, int]:
        (found,) = lab.clients.call(which, "get_inference_statistics", LANGUAGES)["model_stats"]
        assert found["name"] == LANGUAGES
        success = found["inference_stats"]["success"]
        return int(found.get("inference_count", 0)), int(found.get("execution_count", 0)), int(success.get("count", 0))

    before = counted()
    lab.clients.infer(which, LANGUAGES, {"text": texts("One.", "Two.", "Three.")})
    lab.clients.infer(which, LANGUAGES, {"text": texts("One.")})
    # A handler reports once a second, and the gateway reads it every other.
    after = wait_for(counted, lambda counts: counts[0] >= before[0] + 4)
    assert after[0] == before[0] + 4
    assert before[1] + 1 <= after[1] <= before[1] + 4
    assert after[2] == before[2] + 2


def wait_for(ask: Callable[[], Any], is_good: Callable[[Any], bool], most_s: float = 30.0) -> Any:
    """Ask until the answer is good, or it is too late; returns the last answer."""
    deadline = time.monotonic() + most_s
    while True:
        found = ask()
        if is_good(found) or time.monotonic() > deadline:
            return found
        time.sleep(0.25)


@pytest.mark.parametrize("which", CLIENTS)
def test_statistics_of_all_models_name_each(lab: Lab, which: str) -> None:
    found = lab.clients.call(which, "get_inference_statistics")["model_stats"]
    assert {each["name"] for each in found} == {*MODELS}


# -- inference -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", CLIENTS)
@pytest.mark.parametrize("name", [EMBEDDING, ADAPTIVE])
def test_texts_are_embedded_alike_by_every_client_and_mode(lab: Lab, which: str, name: str) -> None:
    found = lab.clients.infer(which, name, {"text": texts()}).as_numpy("embedding")
    plain = [lab.post(f"/predictions/{name}", {"text": text}).json() for text in TEXTS]
    assert found.dtype == np.float32
    assert found.shape == (2, SIZE)
    np.testing.assert_allclose(found, np.array(plain, np.float32), atol=1e-2)


@pytest.mark.parametrize("which", CLIENTS)
@pytest.mark.parametrize("version", ["1", "1.0"])
def test_version_is_asked_by_either_name(lab: Lab, which: str, version: str) -> None:
    found = lab.clients.infer(which, EMBEDDING, {"text": texts()}, model_version=version)
    assert found.as_numpy("embedding").shape == (2, SIZE)
    assert response(found)["model_version"] in ("1", "1.0")


def response(found: Any) -> dict[str, Any]:
    """The answer without its tensors."""
    if isinstance(found, triton_grpc.InferResult):
        return dict(found.get_response(as_json=True))
    return dict(found.get_response())


@pytest.mark.parametrize("which", CLIENTS)
def test_request_id_is_echoed(lab: Lab, which: str) -> None:
    found = lab.clients.infer(which, EMBEDDING, {"text": texts()}, request_id="뉴스-7")
    assert (response(found)["id"], response(found)["model_name"]) == ("뉴스-7", EMBEDDING)


@pytest.mark.parametrize("which", CLIENTS)
def test_tensors_have_the_owners_names(lab: Lab, which: str) -> None:
    found = lab.clients.infer(which, MINILM, {"input_text": texts()}, model_version="1", outputs=["output__0"])
    assert found.as_numpy("output__0").shape == (2, SIZE)


@pytest.mark.parametrize("which", CLIENTS)
def test_only_input_and_output_may_have_any_name(lab: Lab, which: str) -> None:
    found = lab.clients.infer(which, EMBEDDING, {"INPUT0": texts()}, outputs=["whatever"])
    assert found.as_numpy("whatever").shape == (2, SIZE)


@pytest.mark.parametrize("which", CLIENTS)
def test_tokenizer_answers_integers(lab: Lab, which: str) -> None:
    found = lab.clients.infer(which, TOKENIZER, {"text": texts("Good morning.", "Good morning, how are you?")})
    ids, mask = found.as_numpy("input_ids"), found.as_numpy("attention_mask")
    assert ids.dtype == mask.dtype == np.int64
    assert ids.shape == mask.shape
    # [CLS] and [SEP] of BERT's vocabulary, around each.
    assert ids[:, 0].tolist() == [101, 101]
    assert [row[count - 1] for row, count in zip(ids.tolist(), mask.sum(axis=1).tolist(), strict=True)] == [102, 102]


# Datatype of the protocol -> an option of language identification that takes it, and a value.
OPTIONS = {
    **{name: ("top_k", np.dtype(name.lower()).type(2)) for name in
       ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")},
    **{name: ("threshold", np.dtype(f"float{name[2:]}").type(0.25)) for name in ("FP16", "FP32", "FP64")},
    "BOOL": ("label_prefix", np.bool_(True)),
}  # fmt: skip


@pytest.mark.parametrize("which", CLIENTS)
@pytest.mark.parametrize("datatype", OPTIONS)
def test_datatype_is_read_from_raw_bytes(lab: Lab, which: str, datatype: str) -> None:
    name, value = OPTIONS[datatype]
    found = lab.clients.infer(which, LANGUAGES, {"text": texts(), name: np.array([[value], [value]])})
    expected = lab.clients.infer(which, LANGUAGES, {"text": texts()}, parameters={name: value.item()})
    assert found.as_numpy("label").tolist() == expected.as_numpy("label").tolist()
    default = lab.clients.infer(which, LANGUAGES, {"text": texts()}).as_numpy("label").tolist()
    assert (found.as_numpy("label").tolist() != default) == (name != "threshold")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_bf16_is_read_from_raw_bytes(lab: Lab, protocol: str) -> None:
    """As bytes made by hand: Triton's client wants a package for it that has nothing else to do here."""
    labels = []
    for threshold in (0.25, 1.0):
        # BF16 is the upper half of FP32.
        halves = (np.array([threshold] * 2, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
        data = b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in TEXTS)
        inputs = [("text", "BYTES", data), ("threshold", "BF16", halves)]
        if protocol == "grpc":
            request = service_pb2.ModelInferRequest(model_name=LANGUAGES)
            for name, datatype, raw in inputs:
                request.inputs.add(name=name, datatype=datatype, shape=[2, 1])
                request.raw_input_contents.append(raw)
            found = triton_grpc.InferResult(lab.rpc("ModelInfer", request)).as_numpy("label").tolist()
            labels.append([[label.decode() for label in row] for row in found])
        else:
            described = [
                {"name": name, "datatype": datatype, "shape": [2, 1], "parameters": {"binary_data_size": len(raw)}}
                for name, datatype, raw in inputs
            ]
            head = json.dumps({"inputs": described}).encode()
            body = head + b"".join(raw for _, _, raw in inputs)
            answer = lab.post(f"/v2/models/{LANGUAGES}/infer", body, Inference_Header_Content_Length=str(len(head)))
            assert answer.status_code == 200, answer.text
            (label, *_) = answer.json()["outputs"]
            labels.append(np.array(label["data"]).reshape(label["shape"]).tolist())
    # Both are surely of their language, and neither is beyond any doubt.
    assert [row[0] for row in labels[0]] == ["en", "ko"]
    assert labels[1] != labels[0]


@pytest.mark.parametrize("datatype", [name for name in OPTIONS if name != "FP16"])
def test_datatype_is_read_from_json(lab: Lab, datatype: str) -> None:
    name, value = OPTIONS[datatype]
    inputs = [
        {"name": "text", "shape": [2, 1], "datatype": "BYTES", "data": list(TEXTS)},
        {"name": name, "shape": [2, 1], "datatype": datatype, "data": [value.item()] * 2},
    ]
    answer = lab.post(f"/v2/models/{LANGUAGES}/infer", {"inputs": inputs})
    assert answer.status_code == 200, answer.text
    assert [each["name"] for each in answer.json()["outputs"]] == ["label", "score"]


# Datatype -> the field of typed contents that holds it; the protocol has none for the 16-bit floats.
CONTENTS = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip


@pytest.mark.parametrize("datatype", CONTENTS)
def test_datatype_is_read_from_typed_contents(lab: Lab, datatype: str) -> None:
    name, value = OPTIONS[datatype]
    request = service_pb2.ModelInferRequest(model_name=LANGUAGES, id="typed")
    request.inputs.add(name="text", datatype="BYTES", shape=[2, 1]).contents.bytes_contents.extend(
        text.encode() for text in TEXTS
    )
    option = request.inputs.add(name=name, datatype=datatype, shape=[2, 1])
    getattr(option.contents, CONTENTS[datatype]).extend([value.item()] * 2)
    found = triton_grpc.InferResult(lab.rpc("ModelInfer", request))
    assert found.get_response().id == "typed"
    expected = lab.clients.infer("grpc", LANGUAGES, {"text": texts()}, parameters={name: value.item()})
    assert found.as_numpy("label").tolist() == expected.as_numpy("label").tolist()


@pytest.mark.parametrize("is_binary", [True, False])
def test_outputs_are_binary_or_json_as_asked(lab: Lab, is_binary: bool) -> None:
    body = {
        "inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": list(TEXTS)}],
        "parameters": {"binary_data_output": is_binary},
    }
    answer = lab.post(f"/v2/models/{EMBEDDING}/infer", body)
    assert answer.status_code == 200
    length = answer.headers.get("Inference-Header-Content-Length")
    assert (length is not None) == is_binary
    head = json.loads(answer.content[: int(length)] if length else answer.content)
    (output,) = head["outputs"]
    assert (output["datatype"], output["shape"], "data" in output) == ("FP32", [2, SIZE], not is_binary)
    if length:
        assert len(answer.content) - int(length) == output["parameters"]["binary_data_size"] == 2 * SIZE * 4


@pytest.mark.parametrize("which", CLIENTS)
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_request_is_answered_like_a_plain_one(lab: Lab, which: str, algorithm: str) -> None:
    name = "compression_algorithm" if which.startswith("grpc") else "request_compression_algorithm"
    found = lab.clients.infer(which, LANGUAGES, {"text": texts()}, **{name: algorithm})
    plain = lab.clients.infer(which, LANGUAGES, {"text": texts()})
    assert found.as_numpy("label").tolist() == plain.as_numpy("label").tolist()


@pytest.mark.parametrize("which", CLIENTS)
def test_row_that_fails_leaves_the_others_their_answers(lab: Lab, which: str) -> None:
    found = lab.clients.infer(which, LANGUAGES, {"text": texts("Good morning, how are you?", " ")})
    assert found.as_numpy("label")[:, 0].tolist() == [b"en", b""]
    good, bad = found.as_numpy("error").reshape(-1).tolist()
    assert good == b""
    assert json.loads(bad)["type"] == "EmptyInput"


@pytest.mark.parametrize("which", CLIENTS)
def test_priority_and_timeout_are_taken_from_the_request(lab: Lab, which: str) -> None:
    found = lab.clients.infer(which, ADAPTIVE, {"text": texts()}, priority=1, timeout=30_000_000)
    assert found.as_numpy("embedding").shape == (2, SIZE)
    with pytest.raises(InferenceServerException) as caught:
        lab.clients.infer(which, ADAPTIVE, {"text": texts()}, timeout=1)
    # A worker that knows that it would come too late refuses it at once.
    assert str(caught.value.status()) in ("503", "504", "StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED")


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", CLIENTS)
@pytest.mark.parametrize(("name", "version"), [("nobody", ""), ("nobody", "1"), (EMBEDDING, "7")])
def test_unknown_model_and_version_are_not_found(lab: Lab, which: str, name: str, version: str) -> None:
    said = []
    with pytest.raises(InferenceServerException) as caught:
        lab.clients.infer(which, name, {"text": texts()}, model_version=version)
    said.append(refused(which, caught.value, 404, "NOT_FOUND"))
    for method in ("get_model_metadata", "get_model_config", "get_inference_statistics"):
        with pytest.raises(InferenceServerException) as caught:
            lab.clients.call(which, method, name, version)
        said.append(refused(which, caught.value, 404, "NOT_FOUND"))
    assert all((version if name == EMBEDDING else name) in each for each in said), said


@pytest.mark.parametrize("which", CLIENTS)
def test_bad_tensor_is_an_invalid_argument(lab: Lab, which: str) -> None:
    for tensors in ({"text": np.zeros((1, 1), np.float32)}, {"text": texts(), "top_k": np.zeros((3, 1), np.int64)}):
        with pytest.raises(InferenceServerException) as caught:
            lab.clients.infer(which, LANGUAGES, tensors)
        refused(which, caught.value, 400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("which", CLIENTS)
def test_output_that_there_is_not_is_an_invalid_argument(lab: Lab, which: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        lab.clients.infer(which, LANGUAGES, {"text": texts()}, outputs=["logits"])
    assert "label" in refused(which, caught.value, 400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("which", CLIENTS)
def test_too_many_rows_are_too_large(lab: Lab, which: str) -> None:
    config = lab.clients.call("http", "get_model_config", EMBEDDING)
    with pytest.raises(InferenceServerException) as caught:
        lab.clients.infer(which, EMBEDDING, {"text": texts(*["A text."] * (config["max_batch_size"] + 1))})
    assert str(config["max_batch_size"]) in refused(which, caught.value, 413, "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"inputs": 7}', b'{"inputs": [{"name": "text"}]}', b'{"inputs": []}'],
    ids=lambda body: repr(body.decode()),
)
def test_malformed_request_is_a_bad_request(lab: Lab, body: bytes) -> None:
    answer = lab.post(f"/v2/models/{EMBEDDING}/infer", body)
    assert answer.status_code == 400
    assert message(answer)


def test_malformed_message_is_an_invalid_argument(lab: Lab) -> None:
    with grpc.insecure_channel(lab.grpc) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        # A name, and then a field of 100 bytes that are not there.
        name = EMBEDDING.encode()
        with pytest.raises(grpc.RpcError) as caught:
            infer(b"\x0a" + bytes([len(name)]) + name + b"\x2a\x64", timeout=TIMEOUT_S)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_body_that_unpacks_beyond_the_limit_is_too_large(lab: Lab) -> None:
    for encoding, packed in (("gzip", gzip.compress(bytes(64 << 20))), ("deflate", zlib.compress(bytes(64 << 20)))):
        answer = lab.post(f"/v2/models/{EMBEDDING}/infer", packed, Content_Encoding=encoding)
        assert answer.status_code == 413, answer.text


@pytest.mark.parametrize(
    "path", ["/v2/nothing", "/v2/models", "/v2/models/a/b/c", f"/v2/models/{EMBEDDING}/versions/1/nothing", "/v3"]
)
def test_route_that_there_is_not_is_not_found(lab: Lab, path: str) -> None:
    assert lab.get(path).status_code == 404


def test_model_without_workers_is_unavailable_and_makes_the_server_unready(lab: Lab, unready: str) -> None:
    def states(which: str) -> tuple[Any, Any]:
        client = lab.clients
        return client.call(which, "is_server_ready"), client.call(which, "is_model_ready", unready)

    for which in CLIENTS:
        found = wait_for(lambda which=which: states(which), lambda found: found[0] in (False, {}, {"ready": False}))  # type: ignore[misc]
        assert all(each in (False, {}, {"ready": False}) for each in found), (which, found)
        with pytest.raises(InferenceServerException) as caught:
            lab.clients.infer(which, unready, {"text": texts()})
        refused(which, caught.value, 503, "UNAVAILABLE")
    assert lab.get("/v2/health/ready").status_code == 503
    assert lab.get(f"/v2/models/{unready}/ready").status_code in (400, 503)
    assert lab.get("/v2/health/live").status_code == 200


# -- management ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", CLIENTS)
def test_management_lists_loads_and_unloads_where_it_is_let_through(managed: Lab, server: Server, which: str) -> None:
    clients = managed.clients

    def listed() -> dict[str, str]:
        found = clients.call(which, "get_model_repository_index")
        return {each["name"]: each.get("state", "") for each in (found.get("models", []) if "grpc" in which else found)}

    assert wait_for(listed, lambda states: states.get(LANGUAGES) == "READY")[LANGUAGES] == "READY"
    clients.call(which, "unload_model", LANGUAGES)
    assert LANGUAGES not in server.management.models()
    assert wait_for(listed, lambda states: states.get(LANGUAGES) != "READY").get(LANGUAGES) != "READY"
    clients.call(which, "load_model", LANGUAGES)
    assert wait_for(listed, lambda states: states.get(LANGUAGES) == "READY")[LANGUAGES] == "READY"
    found = wait_for(
        lambda: managed.post(f"/v2/models/{LANGUAGES}/infer", JSON_REQUEST).status_code, lambda status: status == 200
    )
    assert found == 200


# -- refused -------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "trace settings": ("get_trace_settings", ()),
    "change of trace settings": ("update_trace_settings", (None, {"trace_rate": "1"})),
    "log settings": ("get_log_settings", ()),
    "change of log settings": ("update_log_settings", ({"log_info": False},)),
    "system shared memory": ("get_system_shared_memory_status", ()),
    "a region of system shared memory": ("register_system_shared_memory", ("region", "/region", 64)),
    "CUDA shared memory": ("get_cuda_shared_memory_status", ()),
}


@pytest.mark.parametrize("which", CLIENTS)
@pytest.mark.parametrize("what", REFUSED)
def test_extension_that_is_not_supported_is_unimplemented(lab: Lab, which: str, what: str) -> None:
    method, arguments = REFUSED[what]
    with pytest.raises(InferenceServerException) as caught:
        lab.clients.call(which, method, *arguments)
    refused(which, caught.value, 400, "UNIMPLEMENTED")


def test_streamed_inference_is_unimplemented(lab: Lab) -> None:
    def requests_() -> Iterator[Any]:
        yield service_pb2.ModelInferRequest(model_name=EMBEDDING)

    with triton_grpc.InferenceServerClient(lab.grpc) as client, pytest.raises(grpc.RpcError) as caught:
        list(client._client_stub.ModelStreamInfer(requests_(), timeout=TIMEOUT_S))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert caught.value.details()


def test_method_that_there_is_not_is_unimplemented(lab: Lab) -> None:
    with grpc.insecure_channel(lab.grpc) as channel:
        for method in ("/inference.GRPCInferenceService/Nothing", "/nobody.Service/Nothing"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(method)(b"", timeout=TIMEOUT_S)
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("which", CLIENTS)
def test_management_is_refused_where_it_is_not_let_through(lab: Lab, which: str) -> None:
    for method, arguments in (
        ("get_model_repository_index", ()),
        ("load_model", (LANGUAGES,)),
        ("unload_model", (LANGUAGES,)),
    ):
        with pytest.raises(InferenceServerException) as caught:
            lab.clients.call(which, method, *arguments)
        assert refused(which, caught.value, 404, "UNIMPLEMENTED")
    ready = wait_for(lambda: lab.get(f"/v2/models/{LANGUAGES}/ready").status_code, lambda status: status == 200)
    assert ready == 200


def test_shared_memory_of_a_tensor_is_a_bad_request(lab: Lab) -> None:
    body = {
        "inputs": [
            {
                "name": "text",
                "shape": [1],
                "datatype": "BYTES",
                "parameters": {"shared_memory_region": "region", "shared_memory_byte_size": 8},
            }
        ]
    }
    answer = lab.post(f"/v2/models/{EMBEDDING}/infer", body)
    assert answer.status_code == 400
    assert "shared" in message(answer).lower()
