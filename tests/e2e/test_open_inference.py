"""Triton's own client against a real TorchServe."""

import gzip
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc as grpc_triton
import tritonclient.http as triton
from numpy.typing import NDArray
from PIL import Image
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from deploy.models import ROOT
from deploy.server import Server
from handlers.protocol.grpc_status import PROTOBUF
from tests.e2e.conftest import send, url
from tests.handlers.protocol import test_grpc_inference
from tests.photographs import path, photograph

EMBEDDING = "sentence-embedding"
KOREAN = json.loads((ROOT / "examples" / EMBEDDING / "news.json").read_text())["instances"][:2]


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(
        server.settings.inference_url.removeprefix("http://"), concurrency=8
    ) as connected:
        yield connected


@pytest.fixture
def embedding(archive: Callable[..., str], serve: Callable[..., str]) -> str:
    return serve(archive=archive(EMBEDDING), name=EMBEDDING)


@pytest.fixture
def triton_names(archive: Callable[..., str], serve: Callable[..., str]) -> list[str]:
    """The embedding and its tokenizer, under the names of tensors that a Triton server's clients use."""
    names = ["embedding", "tokenizer"]
    for name in names:
        serve(archive=archive(name), name=name, max_batch_delay_ms=1)
    return names


def tensor(name: str, array: Any, datatype: str, *, is_binary: bool = True) -> triton.InferInput:
    array = np.asarray(array, {"BYTES": object, "UINT8": np.uint8, "INT64": np.int64}[datatype])
    return triton.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array, binary_data=is_binary)


def pixels(name: str) -> NDArray[np.uint8]:
    return np.asarray(Image.open(path(name)).convert("RGB"))


def top(result: triton.InferResult) -> list[str]:
    return [label.decode() for label in result.as_numpy("label")[:, 0]]


@pytest.mark.parametrize("is_binary", [True, False])
def test_korean_sentences_get_the_vectors_that_predictions_gives(
    server: Server, client: triton.InferenceServerClient, embedding: str, is_binary: bool
) -> None:
    sentences = tensor("INPUT0", [[text.encode()] for text in KOREAN], "BYTES", is_binary=is_binary)
    wanted = [triton.InferRequestedOutput("embedding", binary_data=is_binary)]
    result = client.infer(embedding, [sentences], outputs=wanted, request_id="뉴스-7")
    document = json.dumps({"instances": KOREAN}).encode()
    expected = np.array(send(server, embedding, document, "application/json").body["predictions"], np.float32)
    vectors = result.as_numpy("embedding")
    assert vectors.dtype == np.float32
    assert vectors.shape == (2, 384)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    response = result.get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("뉴스-7", embedding, "1.0")


def test_the_same_body_is_answered_alike_on_predictions_and_v2(
    server: Server, client: triton.InferenceServerClient, embedding: str
) -> None:
    body, length = client.generate_request_body([tensor("text", [text.encode() for text in KOREAN], "BYTES")])
    headers = {"Inference-Header-Content-Length": str(length)}
    answers = [
        requests.post(address, data=body, headers=headers, timeout=60)
        for address in (url(server, embedding), f"{server.settings.inference_url}/v2/models/{embedding}/infer")
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "application/octet-stream"
    predictions, v2 = (
        client.parse_response_body(answer.content, header_length=int(answer.headers["Inference-Header-Content-Length"]))
        for answer in answers
    )
    np.testing.assert_allclose(predictions.as_numpy("embedding"), v2.as_numpy("embedding"), atol=1e-6)


def test_grpc_messages_as_bodies_get_the_vectors_that_http_gives(
    server: Server, client: triton.InferenceServerClient, embedding: str
) -> None:
    """What the gateway's bridge sends, sent by hand: TorchServe itself has nothing to do with gRPC here."""
    sentences = [text.encode() for text in KOREAN]
    expected = client.infer(embedding, [tensor("text", sentences, "BYTES")]).as_numpy("embedding")
    message = test_grpc_inference.message(
        test_grpc_inference.tensor("text", np.array(sentences, object)), request_id="뉴스-7"
    )
    for body in (message, gzip.compress(message)):
        answer = requests.post(url(server, embedding), data=body, headers={"Content-Type": PROTOBUF}, timeout=60)
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, PROTOBUF)
        assert answer.headers["X-Model-Version"] == "1.0"
        response = service_pb2.ModelInferResponse.FromString(answer.content)
        assert (response.id, response.model_name, response.model_version) == ("뉴스-7", embedding, "1.0")
        vectors = grpc_triton.InferResult(response).as_numpy("embedding")
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
    failed = requests.post(url(server, embedding), data=b"{}", headers={"Content-Type": PROTOBUF}, timeout=60)
    assert (failed.status_code, failed.headers["Content-Type"], failed.content) == (400, PROTOBUF, b"")
    assert failed.headers["X-Grpc-Status"] == "3"
    assert failed.headers["X-Grpc-Message"] == "The body is no ModelInferRequest."


def test_images_as_files_and_as_pixels_are_classified_alike(
    server: Server, client: triton.InferenceServerClient, serve: Callable[..., str]
) -> None:
    name = serve()
    files = tensor("image", [[photograph("chelsea")], [photograph("coffee")]], "BYTES")
    top_k = tensor("top_k", [[1], [3]], "INT64")
    result = client.infer(name, [files, top_k])
    assert top(result) == ["Egyptian cat", "espresso"]
    scores = result.as_numpy("score")
    assert scores.shape == (2, 3)
    assert np.isnan(scores).tolist() == [[False, True, True], [False, False, False]]
    alone = send(server, name, photograph("coffee")).body
    np.testing.assert_allclose(scores[1], list(alone.values())[:3], atol=1e-4)

    cat = pixels("chelsea")
    for array in (cat, cat[np.newaxis]):
        result = client.infer(name, [tensor("INPUT0", array, "UINT8")], parameters={"top_k": 2})
        assert top(result) == ["Egyptian cat"]
        np.testing.assert_allclose(result.as_numpy("score")[0, 0], scores[0, 0], atol=1e-4)
        assert result.as_numpy("score").shape == (1, 2)


def test_resnet_152_takes_pixels_and_files(client: triton.InferenceServerClient, serve: Callable[..., str]) -> None:
    name = serve(archive="resnet-152.mar", name="resnet-152")
    coffee = pixels("coffee")
    from_pixels = client.infer(name, [tensor("image", np.stack([coffee, coffee[:, ::-1]]), "UINT8")])
    from_files = client.infer(name, [tensor("image", [photograph("coffee")], "BYTES")])
    assert from_pixels.as_numpy("score").shape == (2, 5)
    # The weights are random, so the labels are nothing to hold on to.
    np.testing.assert_allclose(from_pixels.as_numpy("score")[0], from_files.as_numpy("score")[0], rtol=0.1)


def test_item_that_fails_leaves_the_others_their_answers(
    client: triton.InferenceServerClient, serve: Callable[..., str]
) -> None:
    cat = photograph("chelsea")
    images = tensor("image", [[cat], [b"canary"], [cat[:5000]], [cat]], "BYTES")
    result = client.infer(serve(), [images, tensor("top_k", [[1], [1], [1], [0]], "INT64")])
    assert top(result) == ["Egyptian cat", "", "", ""]
    errors = [error and json.loads(error)["type"] for error in result.as_numpy("error")]
    assert errors == [b"", "UnsupportedMedia", "CorruptInput", "UnknownOption"]


def test_request_that_fails_whole_raises_our_message(
    client: triton.InferenceServerClient, serve: Callable[..., str]
) -> None:
    name = serve()
    for inputs, outputs, message, status in (
        (tensor("image", [b"canary"], "BYTES"), None, "Not an image in one of the formats", "415"),
        (tensor("image", np.zeros((1, 2, 2, 4)), "UINT8"), None, r"UINT8 \[B, H, W, 3\]", "400"),
        (tensor("image", np.zeros((9, 9)), "UINT8"), None, r"image: the shape is \[9, 9\]", "400"),
        (tensor("image", [b"a"] * 65, "BYTES"), None, "65 items; max_instances is 64", "413"),
        (tensor("image", [b"a"], "BYTES"), "logits", "it has label, score, error", "400"),
    ):
        wanted = outputs and [triton.InferRequestedOutput(outputs)]
        with pytest.raises(InferenceServerException, match=message) as caught:
            client.infer(name, [inputs], outputs=wanted)
        assert caught.value.status() == status


def test_malformed_requests_among_good_ones_fail_alone(server: Server, serve: Callable[..., str]) -> None:
    name = serve(max_batch_delay_ms=300)
    cat = tensor("image", [photograph("chelsea")], "BYTES")
    body, length = triton.InferenceServerClient.generate_request_body([cat])

    def post(cut: int) -> requests.Response:
        headers = {"Inference-Header-Content-Length": str(length)}
        address = f"{server.settings.inference_url}/v2/models/{name}/infer"
        return requests.post(address, data=body[: len(body) - cut], headers=headers, timeout=60)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(post, [0, 1, 0, 1000, 0, len(body) - 2]))
    assert [answer.status_code for answer in answers] == [200, 400, 200, 400, 200, 400]
    assert all(list(answer.json()) == ["error"] for answer in answers[1::2])
    sizes = [answer.headers["Server-Timing"].rpartition("batch;desc=")[2] for answer in answers[::2]]
    assert '"3"' in sizes or '"2"' in sizes


# As a client of a Triton embedding service sends it, to the address that a gateway makes of its own.
NESTED = {
    "name": "embedding",
    "inputs": [
        {
            "name": "input_text",
            "shape": [2, 1],
            "datatype": "BYTES",
            "data": [["슈퍼 엔저 장기화에…"], ["엔저 기조 끝날까…"]],
        }
    ],
}


def test_triton_services_clients_get_vectors_and_tokens_under_their_own_names(
    server: Server, client: triton.InferenceServerClient, triton_names: list[str]
) -> None:
    texts = np.array([[text.encode()] for text in KOREAN], object)
    asked = triton.InferInput("input_text", [2, 1], "BYTES")
    asked.set_data_from_numpy(texts)
    embedding = client.infer("embedding", [asked], outputs=[triton.InferRequestedOutput("output__0")])
    vectors = embedding.as_numpy("output__0")
    assert (vectors.dtype, vectors.shape) == (np.float32, (2, 384))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-2)
    wanted = [triton.InferRequestedOutput("input_ids"), triton.InferRequestedOutput("attention_mask")]
    tokens = client.infer("tokenizer", [asked], outputs=wanted)
    ids, mask = tokens.as_numpy("input_ids"), tokens.as_numpy("attention_mask")
    assert ids.dtype == mask.dtype == np.int64
    assert ids.shape == mask.shape
    assert (ids[:, 0] == 101).all()
    assert mask.sum(axis=1).max() == ids.shape[1] < 256
    fixed = client.infer("tokenizer", [asked], outputs=wanted, parameters={"padding": "max_length"})
    assert fixed.as_numpy("input_ids").shape == (2, 256)
    np.testing.assert_array_equal(fixed.as_numpy("input_ids")[:, : ids.shape[1]], ids)

    headers = {"Content-Type": "application/json"}
    answer = requests.post(url(server, "embedding"), json.dumps(NESTED).encode(), headers=headers, timeout=60)
    assert answer.status_code == 200
    (output,) = answer.json()["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("output__0", "FP32", [2, 384])
    assert answer.json()["model_version"] == "1"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_metadata_is_asked_for_by_a_header_of_a_prediction(
    server: Server, triton_names: list[str], method: str
) -> None:
    asked = {"X-Model-Metadata": "1"}
    for place in ("embedding", "embedding/1"):
        answer = requests.request(method, url(server, place), headers=asked, timeout=60)
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "application/json"
        described = answer.json()
        assert (described["name"], described["version"], described["task"]) == ("embedding", "1", "sentence_embedding")
        assert described["inputs"] == [{"name": "input_text", "datatype": "BYTES", "shape": [-1, 1]}]
        assert described["outputs"] == [{"name": "output__0", "datatype": "FP32", "shape": [-1, 384]}]
        assert (described["mode"], described["platform"]) == ("adaptive", "torchserve_openvino")
