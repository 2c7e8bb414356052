"""Models of any tensors behind the gateway, as Triton's own clients call them: each datatype, over HTTP and gRPC."""

import gzip
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
import yaml
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from deploy.gateway.sandbox import Sandbox
from deploy.models import model
from deploy.server import Server
from tests.e2e.conftest import Registrations

DECLARED, UNDECLARED = "tensors-declared", "tensors-undeclared"
MOST_ROWS = 4
NUMBERS = {
    "BOOL": bool,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
}
# Not in the order of the alphabet, which metadata has to keep.
DATATYPES = ("BYTES", *NUMBERS)
TENSOR_SHAPE = [-1, -1, 2]
# What JSON cannot hold, or tritonclient does not write as JSON.
JSON_LACKS = ("BF16",)
TEXTS = [b"", "räv 뉴스".encode(), b"\xff\x00\xfe", b"a" * 300]


def write(folder: Path) -> Path:
    """Write a list of two models that give back what they take, one that says what that is and one that does not."""
    listed = {name: {"handler": "tensors", "version": "1", "weights": "infer.py"} for name in (DECLARED, UNDECLARED)}
    for name in listed:
        (folder / name).mkdir()
    parameters, given = ", ".join(DATATYPES), ", ".join(f"'{name}': {name}" for name in DATATYPES)
    (folder / DECLARED / "infer.py").write_text(f"def infer({parameters}):\n    return {{{given}}}\n")
    tensors = {name: {"datatype": name, "shape": TENSOR_SHAPE} for name in DATATYPES}
    settings = {"max_batch_size": MOST_ROWS, "inputs": tensors, "outputs": tensors}
    (folder / DECLARED / "model-config.yaml").write_text(yaml.safe_dump({"handler": settings}, sort_keys=False))
    (folder / UNDECLARED / "infer.py").write_text("def infer(x):\n    return {'y': x}\n")
    path = folder / "models.yaml"
    path.write_text(yaml.safe_dump(listed))
    return path


class Doors:
    """The gateway, and both of Triton's clients."""

    def __init__(self, gateway: Sandbox) -> None:
        self.url = gateway.http
        self.http = tritonclient.http.InferenceServerClient(gateway.http.removeprefix("http://"))
        self.grpc = tritonclient.grpc.InferenceServerClient(gateway.grpc)
        self.session = requests.Session()
        self.session.trust_env = False

    def close(self) -> None:
        for each in (self.http, self.grpc, self.session):
            each.close()

    def infer(
        self, protocol: str, name: str, arrays: Mapping[str, NDArray[Any]], wanted: Mapping[str, str] | None = None
    ) -> dict[str, NDArray[Any]]:
        """Call a model by "binary" or "json" over HTTP, or by "grpc"; `wanted` says which outputs, as which of both."""
        if protocol == "grpc":
            inputs = [
                tritonclient.grpc.InferInput(key, list(array.shape), datatype(array)).set_data_from_numpy(array)
                for key, array in arrays.items()
            ]
            asked = wanted and [tritonclient.grpc.InferRequestedOutput(key) for key in wanted]
            answer = self.grpc.infer(name, inputs, outputs=asked)
            names = [output.name for output in answer.get_response().outputs]
        else:
            inputs = [
                tritonclient.http.InferInput(key, list(array.shape), datatype(array)).set_data_from_numpy(
                    array, binary_data=protocol == "binary" or datatype(array) in JSON_LACKS
                )
                for key, array in arrays.items()
            ]
            wanted = wanted or (dict.fromkeys(arrays, "json") if protocol == "json" else None)
            asked = wanted and [
                tritonclient.http.InferRequestedOutput(key, binary_data=form == "binary")
                for key, form in wanted.items()
            ]
            answer = self.http.infer(name, inputs, outputs=asked)
            names = [output["name"] for output in answer.get_response()["outputs"]]
        return {key: answer.as_numpy(key) for key in names}

    def post(self, path: str, body: bytes, content_type: str, **headers: str) -> requests.Response:
        sent = {"Content-Type": content_type, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.session.post(f"{self.url}{path}", data=body, headers=sent, timeout=60)


@pytest.fixture(scope="module")
def doors(
    gateway: Sandbox,
    archive: Callable[..., str],
    registrations: Registrations,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Doors]:
    path = write(tmp_path_factory.mktemp("tensors"))
    for name in (DECLARED, UNDECLARED):
        parameters = {"batch_size": 8, "max_batch_delay_ms": 1, "workers": 1}
        registrations.serve(name, archive(model(name, path), engine="auto"), parameters)
    made = Doors(gateway)
    deadline = time.monotonic() + 60
    while not all(is_known(made, name) for name in (DECLARED, UNDECLARED)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield made
    made.close()


def is_known(doors: Doors, name: str) -> bool:
    answer = doors.session.get(f"{doors.url}/v2/models/{name}", timeout=30)
    is_described = answer.status_code == 200 and bool(answer.json()["inputs"])
    # Envoy asks after each node's health by itself: a worker is reached where one refuses what is wrong.
    return is_described and doors.post(f"/predictions/{name}", b"{}", "application/json").status_code == 400


def datatype(array: NDArray[Any]) -> str:
    return str(np_to_triton_dtype(array.dtype))


def values(name: str, shape: tuple[int, ...], *, is_json: bool = False) -> NDArray[Any]:
    """Elements of a datatype, its extremes among them; only such as JSON has where it is to be that."""
    count = int(np.prod(shape))
    if name == "BYTES":
        texts = [text for text in TEXTS if not is_json or b"\xff" not in text]
        return np.array((texts * count)[:count], object).reshape(shape)
    dtype = np.dtype(NUMBERS[name])
    if dtype.kind == "b":
        extremes: list[Any] = [True, False]
    elif dtype.kind in "iu":
        extremes = [np.iinfo(dtype).min, np.iinfo(dtype).max, 1]
    else:
        limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        extremes = [limits.max, limits.min, limits.smallest_subnormal, -0.0, 0.1]
        extremes += [] if is_json else [np.nan, np.inf, -np.inf]
    return np.array((extremes * count)[:count], dtype).reshape(shape)


def assert_same(answered: NDArray[Any], sent: NDArray[Any]) -> None:
    """Whether they are alike to the last bit; of JSON, texts are str."""
    assert (answered.dtype, answered.shape) == (sent.dtype, sent.shape)
    if sent.dtype == object:
        texts = [text.encode() if isinstance(text, str) else text for text in answered.ravel()]
        assert texts == sent.ravel().tolist()
    else:
        assert answered.tobytes() == sent.tobytes()


def everything(rows: int = 2, positions: int = 4, *, is_json: bool = False) -> dict[str, NDArray[Any]]:
    """A tensor of each datatype."""
    return {name: values(name, (rows, positions, 2), is_json=is_json) for name in DATATYPES}


@pytest.mark.parametrize("protocol", ["binary", "json", "grpc"])
def test_declared_tensors_of_every_datatype_come_back_as_they_were_sent(doors: Doors, protocol: str) -> None:
    sent = everything(is_json=protocol == "json")
    answered = doors.infer(protocol, DECLARED, sent)
    assert [*answered] == [*DATATYPES]
    for name, array in sent.items():
        assert_same(answered[name], array)
    # Rows of nothing.
    for name, array in doors.infer(protocol, DECLARED, everything(MOST_ROWS, 0)).items():
        assert (array.dtype, array.shape) == (sent[name].dtype, (MOST_ROWS, 0, 2))


@pytest.mark.parametrize("protocol", ["binary", "json", "grpc"])
@pytest.mark.parametrize("name", DATATYPES)
def test_undeclared_tensors_of_every_datatype_and_shape_come_back_as_they_were_sent(
    doors: Doors, name: str, protocol: str
) -> None:
    is_json = protocol == "json"
    for shape in ((7,), (2, 5), (1, 0), (3, 2, 0), (2, 1, 1, 1, 3)):
        sent = values(name, shape, is_json=is_json)
        wanted = {"y": "json"} if is_json else None
        answered = doors.infer(protocol, UNDECLARED, {"x": sent}, wanted)["y"]
        # A function computes with BF16 as float32, and gives that where nobody says that it is to be BF16 again.
        assert_same(answered, sent.astype(np.float32) if name == "BF16" else sent)


@pytest.mark.parametrize("protocol", ["binary", "grpc"])
def test_outputs_are_those_that_are_asked_for_in_that_order(doors: Doors, protocol: str) -> None:
    sent = everything(3)
    answered = doors.infer(protocol, DECLARED, sent, {"FP64": "binary", "BYTES": "binary", "BOOL": "json"})
    assert [*answered] == ["FP64", "BYTES", "BOOL"]
    for name, array in answered.items():
        assert_same(array, sent[name])


def changed(**tensors: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
    """Everything, with these in place of what stands there; None leaves one out."""
    return {name: array for name, array in {**everything(), **tensors}.items() if array is not None}


WRONG: dict[str, tuple[dict[str, NDArray[Any]], Mapping[str, str] | None, str]] = {
    "datatype": (
        changed(FP32=np.zeros((2, 4, 2))),
        None,
        "FP32: FP32 [-1, -1, 2] is expected; FP64 [2, 4, 2] was sent.",
    ),
    "shape": (
        changed(INT8=np.zeros((2, 4, 3), np.int8)),
        None,
        "INT8: INT8 [-1, -1, 2] is expected; INT8 [2, 4, 3] was sent.",
    ),
    "rank": (
        changed(BYTES=np.zeros((2, 4), object)),
        None,
        "BYTES: BYTES [-1, -1, 2] is expected; BYTES [2, 4] was sent.",
    ),
    "missing": (changed(BOOL=None), None, "BOOL: BOOL [-1, -1, 2] is expected; nothing was sent."),
    "unknown": (
        changed(image=np.zeros((2, 4, 2))),
        None,
        f"image: the model has no such input; it has {', '.join(DATATYPES)}.",
    ),
    "rows": (
        changed(UINT8=np.zeros((3, 4, 2), np.uint8)),
        None,
        "All inputs must have the same number of rows; BYTES has 2, ",
    ),
    "too many": (
        everything(MOST_ROWS + 1),
        None,
        f"The request has 5 rows; batch-size must be <= {MOST_ROWS} for '{DECLARED}'.",
    ),
    "none": (everything(0), None, "The tensors have no rows."),
    "output": (everything(), {"logits": "binary"}, "logits: the model has no such output; it has BYTES, BOOL, "),
}


@pytest.mark.parametrize("protocol", ["binary", "grpc"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_with_its_name_and_a_status_of_the_clients(
    doors: Doors, wrong: str, protocol: str
) -> None:
    arrays, wanted, message = WRONG[wrong]
    with pytest.raises(InferenceServerException) as caught:
        doors.infer(protocol, DECLARED, arrays, wanted)
    assert message in caught.value.message()
    assert caught.value.status() == {"binary": "400", "grpc": "StatusCode.INVALID_ARGUMENT"}[protocol]


def test_metadata_has_inputs_in_their_order_and_says_what_is_not_known(doors: Doors) -> None:
    declared = [{"name": name, "datatype": name, "shape": TENSOR_SHAPE} for name in DATATYPES]
    document = doors.http.get_model_metadata(DECLARED)
    assert (document["inputs"], document["outputs"]) == (declared, declared)
    config = doors.http.get_model_config(DECLARED)
    assert config["max_batch_size"] == MOST_ROWS
    assert config["input"][0] == {"name": "BYTES", "data_type": "TYPE_STRING", "dims": TENSOR_SHAPE[1:]}
    answered = doors.grpc.get_model_config(DECLARED).config
    assert [tensor.name for tensor in answered.output] == [*DATATYPES]
    assert answered.max_batch_size == MOST_ROWS

    # What a function gives that does not say it is known once it has run; the gateway asks every five seconds.
    doors.infer("grpc", UNDECLARED, {"x": np.zeros((1, 2))})
    deadline = time.monotonic() + 60
    while not (document := doors.http.get_model_metadata(UNDECLARED))["outputs"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert document["inputs"] == [{"name": "x", "datatype": "ANY", "shape": [-1]}]
    assert document["outputs"] == [{"name": "y", "datatype": "ANY", "shape": [-1]}]
    assert doors.grpc.get_model_config(UNDECLARED).config.input[0].data_type == 0


PATHS = ("/predictions/{}", "/predictions/{}/1", "/v2/models/{}/infer", "/v2/models/{}/versions/1/infer")


@pytest.mark.parametrize("path", PATHS)
def test_files_of_arrays_pass_and_come_back_where_they_are_asked_for(doors: Doors, path: str) -> None:
    sent = np.arange(12, dtype=np.float32).reshape(3, 4)
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, sent)
    np.savez_compressed(npz, x=sent)
    place = path.format(UNDECLARED)
    answer = doors.post(place, npy.getvalue(), "application/x-npy")
    assert (answer.status_code, answer.json()) == (200, {"outputs": {"y": sent.tolist()}})
    answer = doors.post(place, npy.getvalue(), "application/x-npy", Accept="application/x-npy")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/x-npy")
    assert_same(np.load(io.BytesIO(answer.content)), sent)
    packed = gzip.compress(npz.getvalue())
    answer = doors.post(place, packed, "application/x-npz", Accept="application/x-npz", Content_Encoding="gzip")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/x-npz")
    assert_same(np.load(io.BytesIO(answer.content))["y"], sent)


@pytest.mark.usefixtures("doors")
@pytest.mark.parametrize("path", [f"/predictions/{UNDECLARED}", f"/v2/models/{UNDECLARED}/infer"])
def test_files_of_arrays_pass_torchserves_own_paths(server: Server, path: str) -> None:
    sent, npy = np.arange(6, dtype=np.int16).reshape(2, 3), io.BytesIO()
    np.save(npy, sent)
    headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npz"}
    url = f"{server.settings.inference_url}{path}"
    answer = requests.post(url, data=npy.getvalue(), headers=headers, timeout=60)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/x-npz")
    assert_same(np.load(io.BytesIO(answer.content))["y"], sent)


def test_json_of_rows_and_of_columns_passes(doors: Doors) -> None:
    rows = {name: values(name, (1, 2), is_json=True).tolist() for name in DATATYPES if name != "BYTES"}
    instance = {**rows, "BYTES": [["", "räv"]]}
    for path in (f"/predictions/{DECLARED}", f"/v2/models/{DECLARED}/infer"):
        body = json.dumps({"instances": [instance, {**instance, "FP32": [["a", "b"]]}]}).encode()
        answer = doors.post(path, body, "application/json")
        assert answer.status_code == 200
        good, bad = answer.json()["predictions"]
        assert_alike(good, instance)
        assert bad["error"]["type"] == "TensorMismatch"
        assert bad["error"]["message"].startswith("FP32: ")
        columns = {"inputs": {name: [value, value] for name, value in instance.items()}}
        answer = doors.post(path, json.dumps(columns).encode(), "application/json")
        assert answer.status_code == 200
        assert_alike(answer.json()["outputs"], columns["inputs"])


def assert_alike(answered: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    """Whether JSON's numbers are the same ones of their datatype, in as few digits as it takes."""
    assert answered.keys() == sent.keys()
    for name, value in sent.items():
        if name == "BYTES":
            assert answered[name] == value
        else:
            assert_same(np.array(answered[name], NUMBERS[name]), np.array(value, NUMBERS[name]))


def test_statistics_count_rows(doors: Doors) -> None:
    def counted() -> tuple[int, int]:
        (found,) = doors.http.get_inference_statistics(DECLARED)["model_stats"]
        return int(found["inference_count"]), int(found["inference_stats"]["success"]["count"])

    # Of the tests before some may be counted only now, which is a second late: these are more than all of them.
    requests, rows = 30, 120
    before = counted()
    for _ in range(requests):
        doors.infer("grpc", DECLARED, everything(MOST_ROWS))
    deadline = time.monotonic() + 60
    while not (counted()[0] >= before[0] + rows and counted()[1] >= before[1] + requests):
        assert time.monotonic() < deadline
        time.sleep(0.1)
