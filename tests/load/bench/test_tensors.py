"""The pure parts of `make bench ONLY=tensors`, and the networks that it writes."""

import io
import json
import math
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from load.bench import identity, networks, tensors
from load.bench.contenders import Contender
from load.bench.onnx_session import Given, Session
from load.bench.peers import BenchError
from load.bench.standings import Standing, columns
from load.bench.table import Bound, spread
from load.measure.exchange import Exchange
from load.measure.rates import of_window
from load.measure.recording import Recording
from load.measure.summary import Summary, summarise


def standing(**values: list[float]) -> Standing:
    others = [name for name in values if name != "ours"]
    return Standing("rows/s", values, "ours", others, is_more_better=True, bound=Bound(1, is_minimum=True))


def test_standing_compares_each_round_with_the_best_of_that_round() -> None:
    row = standing(a=[100, 50, 10], b=[50, 100, 10], ours=[110, 90, 20])
    assert [round(value, 2) for value in row.compared] == [1.1, 0.9, 2.0]
    assert row.cells(("a", "b", "ours", "elsewhere"))[4:] == ("", "1.10 (0.90..2.00)", ">= 1", "ok")
    assert len(columns(("a", "b", "ours", "elsewhere"))) == len(row.cells(("a", "b", "ours", "elsewhere")))


def test_standing_of_latencies_compares_with_the_lowest() -> None:
    row = Standing(
        "p99", {"a": [10.0], "b": [20.0], "ours": [15.0]}, "ours", "ab", is_more_better=False,
        bound=Bound(1.1, is_minimum=False),
    )  # fmt: skip
    assert (row.compared, row.cells("ab")[-1]) == ([1.5], "short")


def test_percentile_of_a_server_that_refuses_is_infinite() -> None:
    def summary(refused: int) -> Summary:
        recording = Recording(started_s=0.0, opens_s=0.0, closes_s=1.0)
        for number in range(1000):
            status = 503 if number < refused else 200
            recording.add(Exchange(due_s=0.1, sent_s=0.1, answered_s=0.15, status=status, sent_bytes=1))
        return summarise(recording, of_window)

    assert tensors.p99_ms(summary(refused=10)) == pytest.approx(50, rel=0.01)
    assert tensors.p99_ms(summary(refused=11)) == float("inf")
    row = standing(a=[math.inf], ours=[math.inf])
    assert row.cells(("ours",))[-1] == "short"


def test_tensors_table_holds_ours_first_where_it_is_loaded_and_near_it_elsewhere() -> None:
    values = {"BentoML": [100.0], "LitServe": [80.0], "ours": [95.0], "ours, adaptive": [200.0]}
    loads = [f"{n} clients" if n > 1 else "1 client" for n in (1, 16, 64)]
    measured: tensors.Measured = {("small", load, "rows/s"): values for load in loads}
    measured["deep", "Poisson", "p99 in ms"] = values
    rows = tensors.standings(measured)
    assert [(row.what, spread(row.compared, 2), row.cells(tensors.CONTENDERS)[-1]) for row in rows] == [
        ("small, 1 client, rows/s", "0.95", "ok"),
        ("small, 16 clients, rows/s", "0.95", "ok"),
        ("small, 64 clients, rows/s", "0.95", "short"),
        ("deep, Poisson, p99 in ms", "1.19", "short"),
    ]  # fmt: skip


@pytest.mark.parametrize("write", [networks.small, lambda path: networks.deep(path, 1)])
def test_networks_answer_each_row_alone_as_together(write: Any, tmp_path: Path) -> None:
    network = write(tmp_path / "network.onnx")
    session = Session(Given(str(network.path), network.shape, 4, threads=1))
    rows = network.rows(3)
    together = session.run(rows)
    assert together.shape[0] == 3 and np.isfinite(together).all() and np.ptp(together) > 0
    np.testing.assert_allclose(np.concatenate([session.run(row[None]) for row in rows]), together, rtol=1e-3, atol=1e-4)


def test_networks_of_one_seed_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    written = networks.small(path).path.read_bytes()
    assert networks.small(path).path.read_bytes() == written


def test_deep_network_has_as_many_units_as_fit_its_time(tmp_path: Path) -> None:
    sizes = [networks.deep(tmp_path / "network.onnx", units).path.stat().st_size for units in (1, 2, 3)]
    # Two convolutions of 256 x 256 x 3 x 3 and one dense layer of 2048 x 2048 a unit, of float32.
    assert sizes[2] - sizes[1] == pytest.approx(4 * (2 * 256 * 256 * 9 + 2048 * 2048), rel=0.001)
    assert [networks.units_for(tried_ms) for tried_ms in (4.0, 8.0, 1000.0)] == [20, 10, 1]


def test_milliseconds_are_the_median_without_the_first_runs() -> None:
    ticks = iter(time for number in range(100) for time in (number, number + (9.0 if number < 2 else 0.005)))
    assert networks.milliseconds(lambda: None, lambda: next(ticks)) == pytest.approx(5.0)


def test_given_reaches_another_process_through_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Given("network.onnx", (1, 28, 28), 64, threads=2, processes=2)
    for name, value in given.environment().items():
        monkeypatch.setenv(name, value)
    assert Given.from_environment() == given


def test_identity_bodies_hold_the_same_row() -> None:
    file, binary = identity.bodies()
    (head_length,) = (int(value) for name, value in binary.headers.items() if name.startswith("Inference-"))
    head = json.loads(binary.body[:head_length])
    row = np.frombuffer(binary.body[head_length:], np.float32).reshape(head["inputs"][0]["shape"])
    np.testing.assert_array_equal(np.load(io.BytesIO(file.body)), row)


def test_identity_cost_is_shared_by_all_requests_and_none_may_fail() -> None:
    assert identity.answered([200] * 1000) == 1000
    with pytest.raises(BenchError, match=r"1 of 3 requests failed, with \[503\]"):
        identity.answered([200, 503, 200])


def test_identity_table_compares_with_the_bare_handler_of_the_same_round() -> None:
    kept = identity.new_series()
    for body in (".npy", "binary tensor"):
        for clients in (64, 1):
            kept[identity.key(identity.BARE, body, clients)] = [50.0, 70.0]
            kept[identity.key(identity.OURS, body, clients)] = [100.0, 110.0] if clients == 64 else [200.0, 140.0]
    assert [(spread(row.compared, 0), row.cells()[-1]) for row in identity.table(kept)] == [
        ("45 (40..50)", "ok"),
        ("110 (70..150)", "short"),
    ] * 2


class Tens(BaseHTTPRequestHandler):
    """Answers every row with 10 ones."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = np.ones(10, np.float32).tobytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_contender_of_another_answer_is_named() -> None:
    with HTTPServer(("127.0.0.1", 0), Tens) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/predict"
        contender = Contender("LitServe", url, [b"row"], lambda body: np.frombuffer(body, np.float32))
        contender.check(np.ones((1, 10), np.float32))
        for expected in (np.full((1, 10), 1.01, np.float32), np.ones((1, 9), np.float32)):
            with pytest.raises(BenchError, match="LitServe computes something else than onnxruntime"):
                contender.check(expected)
        server.shutdown()
