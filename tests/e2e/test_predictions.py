import base64
import json
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.models import ROOT
from deploy.server import Server
from tests.e2e.conftest import MOBILENET, curl, metrics, send, send_together, url
from tests.handlers.engines.test_engines import HAS_BF16
from tests.photographs import MOBILENET_TOP_1, encoded, path, photograph

PRECISIONS = ["fp32", "bf16"] if HAS_BF16 else ["fp32"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_curl_photographs_have_the_trained_networks_top_1_in_every_precision(
    server: Server, serve: Callable[..., str], variant: Callable[..., str], precision: str
) -> None:
    name = variant(f"mobilenet-{precision}", handler={"precision": precision})
    serve(archive=name, name=name)
    answers = {photo: json.loads(curl("-T", str(path(photo)), url(server, name))) for photo in MOBILENET_TOP_1}
    assert {photo: next(iter(answer)) for photo, answer in answers.items()} == MOBILENET_TOP_1
    # What torchvision's own preprocessing and network give for the espresso.
    assert answers["coffee"]["espresso"] == pytest.approx(0.992, abs=0.01)
    assert all(len(answer) == 5 for answer in answers.values())


def test_curl_the_examples_photograph_has_the_answer_that_lies_beside_it(
    server: Server, serve: Callable[..., str]
) -> None:
    folder = ROOT / "examples" / MOBILENET
    answer = json.loads(curl("-T", str(folder / "espresso.jpg"), url(server, serve())))
    expected = json.loads((folder / "espresso.expected.json").read_text())
    assert {label: answer[label] for label in expected} == pytest.approx(expected, abs=0.01)


def test_curl_every_way_to_send_an_image_gives_the_same_answer(
    server: Server, serve: Callable[..., str], tmp_path: Path
) -> None:
    address = url(server, serve())
    cat = path("chelsea")
    document = tmp_path / "cat.json"
    document.write_text(json.dumps({"b64": base64.b64encode(cat.read_bytes()).decode()}))
    answers = [
        curl("-T", str(cat), address),
        curl("-X", "POST", "--data-binary", f"@{cat}", "-H", "Content-Type: image/png", address),
        curl("-F", f"data=@{cat}", address),
        curl("-F", f"photo=@{cat}", address),
        curl("-X", "POST", "-H", "Content-Type: application/json", "--data-binary", f"@{document}", address),
        curl("-T", str(document), address),
    ]
    assert len(set(answers)) == 1
    assert next(iter(json.loads(answers[0]))) == "Egyptian cat"
    three = json.loads(curl("-F", f"data=@{cat}", "-F", "top_k=3", address))
    assert list(three) == list(json.loads(answers[0]))[:3]


def test_instances_are_answered_in_order_with_errors_in_place(server: Server, serve: Callable[..., str]) -> None:
    images = [base64.b64encode(photograph(name)).decode() for name in ("coffee", "chelsea")]
    body = json.dumps({"instances": [{"b64": images[0]}, {"b64": "AAAA"}, {"b64": images[1]}], "top_k": 1})
    answer = send(server, serve(), body.encode(), "application/json; charset=utf-8")
    espresso, error, cat = answer.body["predictions"]
    assert (list(espresso), list(cat)) == (["espresso"], ["Egyptian cat"])
    assert error["error"] == {"code": 415, "type": "UnsupportedMedia", "message": error["error"]["message"]}


def test_concurrent_requests_share_batches_and_the_metric_shows_it(server: Server, serve: Callable[..., str]) -> None:
    name = serve(max_batch_delay_ms=500)
    before = handler_metrics(server, name)
    answers = send_together(server, name, [photograph("chelsea")] * 16)
    assert {answer.status for answer in answers} == {200}
    assert {answer.headers["Server-Timing"].rpartition(", ")[2] for answer in answers} == {'batch;desc="8"'}

    def grown() -> dict[str, float]:
        return {series: value - before.get(series, 0.0) for series, value in handler_metrics(server, name).items()}

    deadline = time.monotonic() + 10
    while grown()["handler_items_total"] < 16:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    values = grown()
    assert values["handler_requests_total success"] == 16
    assert values["handler_executions_total 8"] == 2
    assert values["handler_execution_seconds_total 8 infer"] > values["handler_execution_seconds_total 8 output"] > 0
    assert values["handler_batch_size_bucket 7"] == 0
    assert values["handler_batch_size_bucket 8"] == 2
    assert values["handler_batch_size_bucket +Inf"] == 2
    assert values["handler_batch_size_sum"] == 16
    for stage, count in {"decode": 16, "wait": 16, "forward": 2, "encode": 16}.items():
        assert values[f"handler_{stage}_seconds_count"] == count
        assert values[f"handler_{stage}_seconds_sum"] > 0


def handler_metrics(server: Server, model: str) -> dict[str, float]:
    """The handlers' series of one model's version 1.0, as "name" or "name bound".

    Counters outlive a model's registration: other tests of the same server may have left other versions'.
    """
    found = {}
    for series, value in metrics(server).items():
        name, _, rest = series.partition("{")
        labels = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        if not name.startswith("handler_") or labels.pop("ModelName", None) != model:
            continue
        if labels.pop("ModelVersion") == "1.0":
            del labels["Hostname"]
            found[" ".join([name, *labels.values()])] = value
    return {"handler_items_total": 0.0, **found}


def test_seven_good_and_one_corrupt_image_in_one_batch(server: Server, serve: Callable[..., str]) -> None:
    # The batch goes as soon as its eight requests are there; a machine that stalls has this long for them.
    name = serve(max_batch_delay_ms=5000)
    bodies = [photograph("chelsea")] * 7
    bodies.insert(3, photograph("chelsea")[:30_000])
    answers = send_together(server, name, bodies)
    assert [answer.status for answer in answers] == [200, 200, 200, 422, 200, 200, 200, 200]
    assert answers[3].body == {
        "code": 422,
        "type": "CorruptInput",
        "message": "The PNG data is truncated or broken.",
    }
    assert {next(iter(answer.body)) for answer in answers if answer.status == 200} == {"Egyptian cat"}
    assert 'batch;desc="7"' in answers[0].headers["Server-Timing"]


def huge_bmp_header() -> bytes:
    from PIL import Image  # noqa: PLC0415

    body = bytearray(encoded(Image.new("RGB", (1, 1)), "BMP"))
    body[18:26] = struct.pack("<ii", 30_000, 30_000)
    return bytes(body[:54])


BAD_INPUTS = [
    (b"", None, 400, "EmptyInput"),
    (b"not an image", None, 415, "UnsupportedMedia"),
    (photograph("rocket")[:40_000], None, 422, "CorruptInput"),
    (huge_bmp_header(), None, 413, "ImageTooLarge"),
    (b"{", "application/json", 400, "MalformedJson"),
    (b'{"image": "AAAA"}', "application/json", 400, "UnknownShape"),
    (b'{"b64": "AAAA", "topk": 3}', "application/json", 400, "UnknownOption"),
    (json.dumps({"instances": [{"b64": ""}] * 65}).encode(), "application/json", 413, "TooManyInstances"),
    (b'{"b64": "AAAA"}', "application/x-www-form-urlencoded", 400, "EmptyInput"),
    (b'{"b64": "AA=="}', "application/x-www-form-urlencoded", 400, "UnknownShape"),
    (b"x" * (6 * 2**20 + 1), None, 413, "BodyTooLarge"),
]


def test_bad_input_each_has_its_own_error_and_nothing_of_it_is_logged(
    server: Server, serve: Callable[..., str]
) -> None:
    name = serve()
    for body, content_type, status, type_ in BAD_INPUTS:
        answer = send(server, name, body, content_type)
        assert (answer.status, answer.body.get("type")) == (status, type_), answer
        assert answer.body["code"] == status
        assert answer.headers["content-type"] == "application/json"
    canary = b'{"canary-in-the-coal-mine": '
    for content_type in (None, "application/json", "text/plain", "application/x-www-form-urlencoded"):
        assert send(server, name, canary, content_type).status in (400, 415)
    logs = "".join(file.read_text(errors="replace") for file in server.logs.rglob("*") if file.is_file())
    assert "Loaded mobilenet-v2" in logs
    assert "canary" not in logs


def test_body_over_the_servers_own_limit_is_answered_413(server: Server, serve: Callable[..., str]) -> None:
    assert send(server, serve(), b"x" * (33_554_432 + 1)).status == 413


def test_small_body_after_large_one_sees_nothing_of_it(server: Server, serve: Callable[..., str]) -> None:
    """TorchServe pools its buffers: a short body must not end in a longer one's remains."""
    name = serve()
    for _ in range(5):
        assert next(iter(send(server, name, photograph("coffee")).body)) == "espresso"
        assert send(server, name, b"tiny").body["type"] == "UnsupportedMedia"
        assert send(server, name, b"").body["type"] == "EmptyInput"


def test_resnet_152_untrained_is_served_and_says_so(server: Server, serve: Callable[..., str]) -> None:
    serve(archive="resnet-152.mar", name="resnet-152", max_batch_delay_ms=50)
    (described,) = json.loads(curl(f"{server.settings.management_url}/models/resnet-152"))
    assert described["modelVersion"] == "1.0-untrained"
    assert (described["batchSize"], described["maxBatchDelay"]) == (8, 50)
    assert (described["responseTimeout"], described["startupTimeout"]) == (60, 120)
    answer = json.loads(curl("-T", str(ROOT / "examples" / "resnet-152" / "cat.jpg"), url(server, "resnet-152")))
    assert len(answer) == 5
    assert sum(answer.values()) == pytest.approx(1, abs=0.5)


def test_two_models_answer_side_by_side(server: Server, serve: Callable[..., str]) -> None:
    serve()
    serve(archive="resnet-152.mar", name="resnet-152")
    assert sorted(server.management.models()) == [MOBILENET, "resnet-152"]
    assert send(server, MOBILENET, photograph("coffee")).status == 200
    assert send(server, "resnet-152", photograph("coffee")).status == 200
