"""TorchServe's changes to a request before the handler receives it; requests that share a batch; the load generator.

One worker of mobilenet-v2 for all but the last test, whose batches wait longer.
"""

import base64
import json
import re
from pathlib import Path

import pytest

from deploy.models import ROOT
from deploy.nodes.run.server import Server
from load.__main__ import main
from tests.e2e.conftest import MOBILENET, Make, curl, logged, metrics, send, send_together, url
from tests.photographs import path, photograph
from tests.waiting import until

EXAMPLE = ROOT / "examples" / MOBILENET


def test_curl_every_way_to_send_an_image_gives_the_same_answer(server: Server, serve: Make, tmp_path: Path) -> None:
    address = url(server, serve())
    cat, document = path("chelsea"), tmp_path / "cat.json"
    document.write_text(json.dumps({"b64": base64.b64encode(cat.read_bytes()).decode()}))
    ways = (
        *(("-T", cat), ("-F", f"data=@{cat}"), ("-F", f"photo=@{cat}"), ("-T", document)),
        ("--data-binary", f"@{cat}", "-H", "Content-Type: image/png"),
        ("--data-binary", f"@{document}", "-H", "Content-Type: application/json"),
    )
    answers = [curl(*map(str, way), address) for way in ways]
    assert (len(set(answers)), next(iter(json.loads(answers[0])))) == (1, "Egyptian cat")
    three = json.loads(curl("-F", f"data=@{cat}", "-F", "top_k=3", address))
    assert list(three) == list(json.loads(answers[0]))[:3]


def test_load_on_torchserve_measures_throughput_batches_and_right_answers(
    server: Server, serve: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, out, page = serve(), tmp_path / "run.json", tmp_path / "page.html"
    addresses = ["-u", server.settings.inference_url, "--management-url", server.settings.management_url]
    words = ["run", *addresses, "-i", str(EXAMPLE / "espresso.jpg"), "--concurrency", "1,8", "--duration", "2s"]
    assert main([*words, "-m", "absent"]) == 2
    assert f"model absent is not registered; registered: {MOBILENET}" in capsys.readouterr().err
    expected = str(EXAMPLE / "espresso.expected.json")
    assert main([*words, "-m", name, "--expect", expected, "-o", str(out), "--html", str(page)]) == 0
    run = json.loads(out.read_text())
    (one, eight), batch_size = run["steps"], run["registration"]["batchSize"]
    for step in (one, eight):
        assert step["is_valid"], step["invalid_reason"]
        assert (step["status"], step["answers"]) == ({"200": step["requests"]}, {"right": step["requests"]})
        assert step["server_ms"].keys() >= {"decode", "wait", "forward", "encode"}
        assert step["server_ms"]["forward"] < step["latency_ms"]["mean"]
    assert one["mean_batch_size"] == 1 < eight["mean_batch_size"] <= batch_size == 8
    # One client: what it waited for is all there is; its rate is the inverse of its mean latency.
    assert one["throughput_per_s"] == pytest.approx(1e3 / one["latency_ms"]["mean"], rel=0.2)
    # The page draws the load of the highest rate: on a machine that stalls it may be the single client's.
    best = "8 clients" if eight["throughput_per_s"] >= one["throughput_per_s"] else "1 client"
    assert f"Batch sizes, {best}" in page.read_text()


# Where TorchServe itself reads the body, or leaves it: as bytes, as JSON, as a form.
BAD_BODIES = [
    (b"", None, 400, "EmptyInput"),
    (b'{"canary": ', "application/json", 400, "MalformedJson"),
    (b'{"canary": ', "text/plain", 415, "UnsupportedMedia"),
    (b'{"canary": ', "application/x-www-form-urlencoded", 400, "EmptyInput"),
    (b'{"b64": "AA=="}', "application/x-www-form-urlencoded", 400, "InvalidBody"),
    (b'{"b64": "AAAA", "topk": 3}', "application/json", 400, "InvalidOption"),
    (json.dumps({"instances": [{"b64": ""}] * 65}).encode(), "application/json", 413, "TooManyInstances"),
    (b"x" * (6 * 2**20 + 1), None, 413, "BodyTooLarge"),
]


def test_bad_body_has_its_own_error_and_nothing_of_it_is_logged_or_left_for_the_next(
    server: Server, serve: Make
) -> None:
    name = serve()
    for body, content_type, status, type_ in BAD_BODIES:
        # TorchServe pools its buffers: a short body must not end in a longer one's remains.
        assert next(iter(send(server, name, photograph("coffee")).body)) == "espresso"
        answer = send(server, name, body, content_type)
        assert (answer.status, answer.body["code"], answer.body["type"]) == (status, status, type_), answer
        assert answer.headers["content-type"] == "application/json"
    assert send(server, name, b"x" * (33_554_432 + 1)).status == 413
    # A form that ends within an escape is TorchServe's own error; its exception quotes the form.
    assert send(server, name, b"canary=canary%4", "application/x-www-form-urlencoded").status == 500
    until(lambda: "DecoderException" in logged(server))
    written = logged(server)
    assert "Loaded mobilenet-v2" in written
    assert "canary" not in written


def test_requests_at_once_share_full_batches_and_the_metrics_count_them(server: Server, serve: Make) -> None:
    # A batch goes as soon as its eight requests are there; a machine that stalls has this long for them.
    name = serve(max_batch_delay_ms=5000)
    before = handler_metrics(server, name)
    answers = send_together(server, name, [photograph("chelsea")] * 16)
    assert [(answer.status, answer.batch_size) for answer in answers] == [(200, 8)] * 16

    def grown() -> dict[str, float]:
        return {series: value - before.get(series, 0.0) for series, value in handler_metrics(server, name).items()}

    counts = {"requests_total success": 16, "executions_total 8": 2, "batch_size_bucket 8": 2, "batch_size_sum": 16}
    counts |= {f"{stage}_seconds_count": 16 for stage in ("decode", "engine_wait", "encode")}
    counts |= {"items_total": 16, "forward_seconds_count": 2, "batch_size_bucket 7": 0}
    # TorchServe reads a handler's counters one by one from its output.
    some = [f"{stage}_seconds_sum" for stage in ("decode", "engine_wait", "forward", "encode")]
    some += [f"execution_seconds_total 8 {phase}" for phase in ("infer", "output")]
    least = {**dict.fromkeys(some, 1e-9), **counts}
    until(lambda: all(grown().get(f"handler_{name}", 0.0) >= value for name, value in least.items()))
    values = grown()
    assert {name: values[f"handler_{name}"] for name in counts} == counts
    assert values["handler_execution_seconds_total 8 infer"] > values["handler_execution_seconds_total 8 output"]


def handler_metrics(server: Server, model: str) -> dict[str, float]:
    """The handlers' series of one model's version 1.0, as "name" or "name bound"."""
    found = {"handler_items_total": 0.0}
    for series, value in metrics(server).items():
        name, _, rest = series.partition("{")
        labels = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        if not name.startswith("handler_") or labels.pop("ModelName", None) != model:
            continue
        # Counters outlive a registration: other tests of the same server may have left other versions'.
        if labels.pop("ModelVersion") == "1.0":
            del labels["Hostname"]
            found[" ".join([name, *labels.values()])] = value
    return found
