"""Where requests go, with a real Envoy."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.gateway.settings import Settings
from tests.deploy.gateway.envoy.harness import Gateway

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(Path(tmp_path_factory.mktemp("gateway")), Settings()) as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("method", "path", "arrives"),
    [
        ("POST", "/predictions/m", "/predictions/m"),
        ("PUT", "/predictions/m", "/predictions/m"),
        ("POST", "/predictions/m/1.0", "/predictions/m/1.0"),
        ("POST", "/predictions/m/2", "/predictions/m/2.0"),
        ("POST", "/v2/models/m/infer", "/predictions/m"),
        ("POST", "/v2/models/m/versions/1/infer", "/predictions/m/1.0"),
        ("POST", "/v2/models/m/versions/2.0/infer", "/predictions/m/2.0"),
    ],
)
def test_inference_arrives_at_a_node(gateway: Gateway, method: str, path: str, arrives: str) -> None:
    told = gateway.told(method, path, data=b"x" * 10)
    assert (told["by"][:5], told["method"], told["path"], told["bytes"]) == ("node-", method, arrives, 10)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/page/app.js"),
        ("GET", "/openapi.json"),
        ("GET", "/summary"),
        ("GET", "/v2"),
        ("GET", "/v2/health/ready"),
        ("GET", "/v2/models/m"),
        ("GET", "/v2/models/m/versions/1/config"),
        ("POST", "/v2/models/unknown/infer"),
        ("POST", "/v2/models/m/versions/3/infer"),
    ],
)
def test_what_is_asked_about_models_arrives_at_the_control_process(gateway: Gateway, method: str, path: str) -> None:
    told = gateway.told(method, path)
    assert (told["by"], told["method"], told["path"]) == ("control", method, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/control/nodes"),
        ("GET", "/metrics"),
        ("GET", "/models"),
        ("GET", "/models/m?customized=true"),
        ("POST", "/models?url=m.mar"),
        ("POST", "/predictions/unknown"),
        ("POST", "/predictions/m/3"),
        ("POST", "/predictions/m/1.0/more"),
        ("POST", "/invocations"),
        ("OPTIONS", "/predictions/m"),
        ("GET", "/ping"),
        ("GET", "/pages"),
        ("POST", "/inference.GRPCInferenceService/ModelInfer"),
    ],
)
def test_everything_else_is_not_found(gateway: Gateway, method: str, path: str) -> None:
    answer = gateway.ask(method, path)
    assert answer.status_code == 404
    assert answer.json() == {
        "code": 404,
        "type": "NotFound",
        "message": "Neither this path nor this model is served.",
    }


def test_repository_is_not_found_without_management(gateway: Gateway) -> None:
    answer = gateway.ask("POST", "/v2/repository/index")
    assert (answer.status_code, list(answer.json())) == (404, ["error"])


@pytest.mark.parametrize(
    ("message", "arrives"),
    [
        (b"\x0a\x01m", "/predictions/m"),
        (b"\x0a\x01m\x12\x011", "/predictions/m/1.0"),
        (b"\x0a\x01m\x12\x032.0", "/predictions/m/2.0"),
        # An id before the name, and a tensor's bytes that look like a name.
        (b"\x1a\x02id\x3a\x03\x0a\x01x\x0a\x01m", "/predictions/m"),
        (b"\x0a\x07unknown", "/inference.GRPCInferenceService/ModelInfer"),
        (b"\x0a\x03a/b", "/inference.GRPCInferenceService/ModelInfer"),
    ],
)
def test_grpc_inference_arrives_as_a_post_of_its_message(gateway: Gateway, message: bytes, arrives: str) -> None:
    answer, told = gateway.call("ModelInfer", message)
    assert (told["method"], told["path"], told["headers"]["content-type"]) == (
        "POST",
        arrives,
        "application/x-protobuf",
    )
    assert answer == message


def test_grpc_methods_about_models_arrive_at_the_control_process(gateway: Gateway) -> None:
    _, told = gateway.call("ModelMetadata", b"\x0a\x01m")
    assert (told["by"], told["path"]) == ("control", "/inference.GRPCInferenceService/ModelMetadata")
