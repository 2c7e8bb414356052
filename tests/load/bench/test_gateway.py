import json
import struct

from handlers.protocol.grpc_messages import CLASSES
from load.bench import gateway
from load.bench.binary_clients import HEAD_BYTES, grpc_requests, http_requests
from load.bench.table import spread

TEXTS = ["Guten Morgen", "기준금리"]


def test_gateway_table_compares_each_figure_with_the_same_without_it() -> None:
    rows = gateway.table(
        {
            gateway.LANGUAGES_PER_S: {gateway.STRAIGHT: [4000.0, 4200.0], gateway.THROUGH: [3600.0, 3360.0]},
            gateway.IMAGES_PER_S: {gateway.STRAIGHT: [50.0, 50.0], gateway.THROUGH: [48.0, 48.0]},
            gateway.ONE_CLIENT_P50_MS: {gateway.STRAIGHT: [1.0, 1.0], gateway.THROUGH: [1.5, 1.6]},
            gateway.TENSORS_PER_S: {gateway.HTTP: [500.0, 500.0], gateway.GRPC: [600.0, 450.0]},
        }
    )
    assert [(spread(row.compared, 2), row.cells()[-1]) for row in rows] == [
        ("0.85 (0.80..0.90)", "ok"),
        ("0.96 (0.96..0.96)", "short"),
        ("0.55 (0.50..0.60)", "ok"),
        ("1.05 (0.90..1.20)", "ok"),
    ]


def test_gateway_texts_have_one_length() -> None:
    assert {len(text.split()) for text in gateway.short_texts()} == {gateway.TUNING.words}


def test_binary_requests_hold_the_same_tensor_over_http_and_grpc() -> None:
    for text, body, message in zip(TEXTS, http_requests(TEXTS), grpc_requests("m", TEXTS), strict=True):
        encoded = text.encode()
        data = struct.pack("<I", len(encoded)) + encoded
        head = json.loads(body[:HEAD_BYTES])
        assert body[HEAD_BYTES:] == data
        assert head["inputs"][0]["parameters"]["binary_data_size"] == len(data)
        request = CLASSES["ModelInferRequest"].FromString(message)
        assert (request.model_name, list(request.raw_input_contents)) == ("m", [data])
        assert (head["inputs"][0]["name"], head["outputs"][0]["name"]) == (
            request.inputs[0].name,
            request.outputs[0].name,
        )
