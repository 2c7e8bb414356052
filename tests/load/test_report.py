"""run.json, table, ratios and page of runs with known numbers."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from load import LoadError, page, report
from load.generate import Attack, ClosedLoop, Load, OpenLoop, Target
from load.inputs import Inputs
from load.results import Exchange, Recording, Verdict
from load.run_file import Run, Step, make_step
from load.schedules import Poisson
from tests.tables import table

TIMING = 'decode;dur=2.00, wait;dur=1.00, forward;dur=40.00, encode;dur=0.50, batch;desc="4"'


def step(load: Load, throughput_per_s: float, repeat: int = 1, slower: float = 1.0) -> Step:
    """Return ten seconds with latencies of 1 .. 100 ms in turn, a refusal and a lost connection, after a warm-up."""
    count = round(throughput_per_s * 10)
    times = [(n / count * 9.8, slower * (1 + n % 100) / 1e3) for n in range(count)]
    good = [Exchange(due_s, due_s, due_s + took_s, 200, server_timing=TIMING) for due_s, took_s in times]
    bad = [Exchange(5, 5, 5.001, 503), Exchange(6, 6, 7, 0, error="ServerDisconnectedError")]
    recording = Recording([Exchange(-1, -1, -0.5, 200), *good, *bad], opens_s=0, closes_s=10)
    # Half of the latencies are within the threshold.
    attack = Attack(Target("http://x/predictions/m"), Inputs.of([b""]), load, latency_threshold_ms=50.5)
    summary = replace(attack.summarise(recording), throughput_per_s=throughput_per_s)
    return make_step(attack, summary, recording, repeat, "2026-01-01T00:00:00.000+00:00")


def run(label: str = "ours", *throughputs_per_s: float) -> Run:
    """Return a run with a closed and an open loop, or with repeats of the closed one."""
    repeats = [step(ClosedLoop(8), each, number) for number, each in enumerate(throughputs_per_s, 1)]
    steps = repeats or [step(ClosedLoop(8), 50), step(OpenLoop(Poisson(60)), 60)]
    return Run(label, "2026-01-01T00:00:00+00:00", "m", "http://x/predictions/m", {"batchSize": 4}, {}, ["a"], steps)


@table(
    (None, True, "NOT MET"),
    (49.0, True, "met"),
    (100 * 250 / 502, True, "met"),
    # An invalid step proves nothing.
    (49.0, False, "unknown, the step is NOT VALID"),
    (None, False, "unknown, the step is NOT VALID"),
)
def test_verdict_has_each_outcome_and_the_first_refusal(percentile: float | None, is_valid: bool, verdict: str) -> None:
    refusal = {"status": 503, "type": "QueueFull", "retry_after": None, "latency_ms": 1.234}
    steps = [replace(step(ClosedLoop(8), 50), refusal=refusal, is_valid=is_valid)]
    assert list(report.verdicts([replace(run(), settings={"percentile": percentile}, steps=steps)])) == [
        f"target {verdict}: ours, 8 clients, 50.5 ms: in time 49.80 %, late 49.80 %, refused 0.20 %, failed 0.20 % of "
        f"502 requests; {percentile or 99:g} % must be in time",
        "first refusal: ours, 8 clients: 503 QueueFull, Retry-After missing, after 1.23 ms",
    ]


def invalid(original: Run) -> Run:
    steps = [replace(each, is_valid=False, invalid_reason="the generator <fell> behind") for each in original.steps]
    return replace(original, steps=steps)


def test_run_json_has_the_documented_fields_and_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run().save(path)
    assert Run.read(path) == run()
    stored = json.loads(path.read_text())
    first = stored["steps"][0]
    assert stored["schema"] == "load-run/1"
    assert (first["name"], first["kind"], first["value"]) == ("8 clients", "concurrency", 8)
    assert (first["is_valid"], first["invalid_reason"]) == (True, None)
    assert list(first["latency_ms"]) == ["min", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"]
    assert first["latency_ms"]["p50"] == pytest.approx(50)
    assert (first["status"], first["connection_errors"]) == ({"200": 500, "503": 1}, {"ServerDisconnectedError": 1})
    assert (first["requests"], first["in_time_percent"]) == (502, pytest.approx(100 * 250 / 502))
    assert (first["requests_by_batch_size"], first["mean_batch_size"]) == ({"4": 500}, 4)
    assert first["server_ms"] == {"decode": 2, "wait": 1, "forward": 40, "encode": 0.5}
    assert {len(column) for column in first["exchanges"].values()} == {503}
    assert len(run().steps[0].latencies_s) == 500


def test_file_that_is_no_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with pytest.raises(LoadError, match="cannot read"):
        Run.read(path)
    run().save(path)
    older = path.read_text().replace("load-run/1", "load-run/0")
    messages = dict.fromkeys(("", "[]", '{"steps": []}'), "is not a file of")
    for content, message in {**messages, older: "load-run/0, this program reads load-run/1"}.items():
        path.write_text(content)
        with pytest.raises(LoadError, match=message):
            Run.read(path)


def test_table_has_a_row_for_each_step_and_says_what_is_not_valid() -> None:
    header, clients, rate, *verdicts = report.text([run()]).splitlines()
    assert [line.split(":")[0] for line in verdicts] == ["target NOT MET"] * 2
    assert header.split()[:4] == ["run", "load", "1/s", "goodput"]
    assert clients.split()[:4] == ["ours", "8", "clients", "50.0"]
    assert "200: 500, 503: 1, ServerDisconnectedError: 1" in clients
    assert clients.split()[-6:] == ["4.0", "2.00", "1.00", "40.0", "0.50", "yes"]
    assert [report._ms(value) for value in (9.996, 10, 99.96, 100, None)] == ["10.00", "10.0", "100.0", "100", ""]
    assert rate.startswith("ours  60/s poisson")
    mixed = replace(run().steps[0], answers={"right": 5, "wrong": 1, "swapped": 2})
    words = "WRONG ANSWERS: ours, 8 clients: 1 wrong, 2 that belong to another request, of 8 checked"
    assert list(report.remarks([replace(run(), steps=[mixed])])) == [words]
    text = report.text([invalid(run())])
    assert text.count(" NO\n") == 2
    assert "NOT VALID: ours, 8 clients: the generator <fell> behind" in text


def test_runs_are_compared_by_the_repeats_of_each_load_that_are_valid_in_both() -> None:
    first, *_ = report.ratios(run("a", 50, 60), run("b", 100, 90))
    names = ("load", "quantity", "before", "after", "ratio", "of each repeat")
    expected = ["8 clients", "throughput 1/s", "55.0", "95.0", "1.727", "1.500 .. 2.000"]
    assert [first[name] for name in names] == expected
    other = run("b", 100, 90)
    other.steps[1] = invalid(other).steps[1]
    assert report.ratios(run("a", 50, 60), other)[0]["ratio"] == "2.000"
    assert report.ratios(other, run("a", 50, 60))[0]["ratio"] == "0.500"
    # 25.149 and 40.28 are written as 25.1 and 40.3, of which it is the quotient.
    assert report.ratios(run("a", 25.149), run("b", 40.28))[0]["ratio"] == "1.606"
    assert "no valid load in common" in report.text([run("a", 50), replace(run("b"), steps=run("b").steps[1:])])


def test_curve_of_the_page_has_one_point_a_load_in_the_order_of_clients_and_the_distribution_its_percentiles() -> None:
    # Repeats of 16 and 2 clients in the order of their measurement; throughput falls with more clients.
    loads = [(repeat, *load) for repeat in (1, 2, 3) for load in ((16, 30), (2, 38 + repeat))]
    steps = [step(ClosedLoop(clients), per_s, repeat) for repeat, clients, per_s in loads]
    points = page.curve(replace(run(), steps=steps))
    assert [(point.name, round(point.throughput_per_s)) for point in points] == [("2 clients", 40), ("16 clients", 30)]
    shown = replace(
        run(), steps=[step(ClosedLoop(8), 50, repeat, slower) for repeat, slower in ((1, 1), (2, 2), (3, 9))]
    )
    distribution = page._figure([shown]).data[2]
    assert dict(zip(distribution.x, distribution.y, strict=True))[100] == page.curve(shown)[0].latency_ms["p99"]


def test_page_of_two_runs_is_whole_needs_no_network_and_compares_them() -> None:
    empty = replace(run("ours", 50), label="without answers", steps=[])
    assert "without answers" in page.render([empty])
    text = page.render([run("ours", 50, 60, 55), run("<stock>", 25, 30, 27.5)])
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)
    without_scripts = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "<stock>" not in without_scripts
    assert "<h2>before: ours, after: &lt;stock&gt;</h2>" in without_scripts
    assert '"name":"before: ours"' in text and "after: \\u003cstock\\u003e" in text
    # Cards, table and charts have the medians of the repeats, and the ratio is their quotient.
    medians = ("<b>55.0/s</b>", "<b>27.5/s</b>", "<td>0.500</td><td>0.500 .. 0.500</td>")
    ratio = "<b>× 0.50</b><span>throughput at 8 clients, after over before</span>"
    assert [words for words in (*medians, ratio) if words not in without_scripts] == []
    titles = ("Latency by throughput", "Latency distribution", "Batch sizes", "Time of a request")
    assert [title for title in titles if title not in text] == []


def test_latencies_are_those_of_right_answers_to_requests_of_the_window() -> None:
    verdicts = {1.0: Verdict.RIGHT, 2.0: Verdict.WRONG, 3.0: Verdict.SWAPPED, 4.0: None, -1.0: Verdict.RIGHT}
    rows = [Exchange(due_s, due_s, due_s + due_s / 8, 200, verdict=each) for due_s, each in verdicts.items()]
    attack = Attack(Target("http://x/predictions/m"), Inputs.of([b""]), ClosedLoop(8))
    recording = Recording([*rows, Exchange(5, 5, 9, 503)], opens_s=0, closes_s=10)
    assert make_step(attack, attack.summarise(recording), recording, 1, "").latencies_s == [0.125, 0.5]
