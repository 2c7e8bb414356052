"""What a model says of itself, asked of a TorchServe and of a gateway on real sockets; arrays with all beside them."""

from typing import Any, Literal

import numpy as np
import pytest

from tests.client.tensor_server import MODEL, TensorServer, serving
from torchserve_client import Client, ServerFailed
from torchserve_client.metadata import Metadata, TensorMetadata

SAID = Metadata(
    name=MODEL,
    version="1.0",
    platform="torchserve_function",
    inputs=(TensorMetadata("INPUT_1", "INT32", (-1, 1)),),
    outputs=(TensorMetadata("OUTPUT_1", "INT32", (-1, 1)),),
    max_batch_size=2,
)


@pytest.mark.parametrize("role", ["torchserve", "gateway"])
@pytest.mark.parametrize("version", [None, "1.0"])
def test_metadata_is_the_same_of_a_torchserve_and_a_gateway(
    role: Literal["torchserve", "gateway"], version: str | None
) -> None:
    with serving(TensorServer(role)) as server, Client(server.url, timeout_s=20) as client:
        assert client.metadata(MODEL, version) == SAID
    # A gateway's model is not asked: it would take the question for a prediction. Nor is the management's description.
    is_model_asked = any(path.startswith("GET /predictions/") for path in server.paths)
    assert is_model_asked == (role == "torchserve")
    assert not any("customized" in path for path in server.paths)


@pytest.mark.parametrize("said", [{}, {"predictions": []}, {"name": "m", "inputs": 3, "outputs": []}, [1], "text"])
def test_model_that_does_not_describe_itself_is_named(said: Any) -> None:
    words = "Batch2: it does not say what it takes"
    with (
        serving(TensorServer(metadata=said)) as server,
        Client(server.url, timeout_s=20) as client,
        pytest.raises(ServerFailed, match=words),
    ):
        client.metadata(MODEL)


def test_infer_sends_parameters_and_headers_of_any_name() -> None:
    with serving(TensorServer()) as server, Client(server.url, timeout_s=20) as client:
        answer = client.infer(
            MODEL,
            {"INPUT_1": np.array([[7], [8]], np.int32)},
            version="1.0",
            parameters={"version": "x", "timeout_s": 3},
            headers={"X-Priority": "1", "content-type": "text/plain", "inference-header-content-length": "1"},
        )
    assert answer["OUTPUT_1"].tolist() == [[7], [8]]
    (method, path, headers), (parameters,) = server.asked[-1], server.parameters
    assert (method, path) == ("POST", f"/predictions/{MODEL}/1.0")
    assert parameters == {"binary_data_output": True, "version": "x", "timeout_s": 3}
    sent = {name.lower(): value for name, value in headers.items()}
    assert (sent["x-priority"], sent["content-type"]) == ("1", "application/octet-stream")
