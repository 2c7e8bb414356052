import threading
from collections import Counter as Sums
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from deploy.models import ROOT
from handlers.metrics import (
    COUNTERS,
    DECODE,
    HISTOGRAMS,
    ITEM_ERRORS,
    ITEMS,
    SUCCEEDED,
    Recorder,
    Reporter,
    Sample,
    execution_event,
    item_event,
)


def recorder() -> Recorder:
    """Return a recorder whose zeros have been sent."""
    fresh = Recorder()
    fresh.drain()
    return fresh


def totals(samples: list[Sample]) -> dict[tuple[str, ...], float]:
    return {(s.counter.name, *s.labels): s.value for s in samples if not s.counter.name.endswith("_bucket")}


def test_events_of_a_request_and_a_micro_batch_fill_every_series() -> None:
    subject = recorder()
    subject.record([(execution_event(2), (0.25, 0.5, 0.125, 0.75, 2))])
    good, bad = item_event(None, has_run=True), item_event("EmptyInput", has_run=False)
    subject.record([(SUCCEEDED, (0.5, 2.0, 0.25)), (good, (0.5, 0.25)), (bad, (0.125,))])
    subject.add(ITEMS, 3)
    subject.add(ITEM_ERRORS, 1, "CorruptInput")

    samples = subject.drain()
    assert totals(samples) == {
        ("handler_requests_total", "success"): 1,
        ("handler_outcome_seconds_total", "success"): 2.0,
        ("handler_request_seconds_sum",): 2.0,
        ("handler_request_seconds_count",): 1,
        ("handler_worker_wait_seconds_total",): 0.25,
        ("handler_encode_seconds_sum",): 0.5,
        ("handler_encode_seconds_count",): 1,
        ("handler_items_total",): 4,
        ("handler_item_errors_total", "EmptyInput"): 1,
        ("handler_item_errors_total", "CorruptInput"): 1,
        ("handler_decode_seconds_sum",): 0.625,
        ("handler_decode_seconds_count",): 2,
        ("handler_engine_wait_seconds_sum",): 0.25,
        ("handler_engine_wait_seconds_count",): 1,
        ("handler_executions_total", "2"): 1,
        ("handler_execution_seconds_total", "2", "input"): 0.25,
        ("handler_execution_seconds_total", "2", "infer"): 0.5,
        ("handler_execution_seconds_total", "2", "output"): 0.125,
        ("handler_forward_seconds_sum",): 0.75,
        ("handler_forward_seconds_count",): 1,
        ("handler_batch_size_sum",): 2,
        ("handler_batch_size_count",): 1,
    }
    buckets = {s.labels[0]: s.value for s in samples if s.counter == DECODE.bucket}
    # Upper ends are inclusive: 0.125 lies below 0.25, 0.5 on the bound 0.5.
    assert [buckets[le] for le in ("0.25", "0.5", "+Inf")] == [1, 2, 2]
    # TorchServe writes numbers as they are, and numpy's are not Python's.
    assert {type(s.value) for s in samples} <= {int, float}
    assert subject.drain() == []


def test_first_drain_declares_every_histogram_at_zero() -> None:
    samples = Recorder().drain()
    assert {sample.value for sample in samples} == {0}
    assert {sample.counter for sample in samples} == {c for h in HISTOGRAMS for c in (h.bucket, h.sum, h.count)}


def test_events_of_many_threads_are_neither_lost_nor_doubled() -> None:
    subject, drained, is_over = recorder(), list[Sample](), threading.Event()

    def record(_: int) -> None:
        for _ in range(2000):
            subject.record([(SUCCEEDED, (0.5, 2.0, 0.25)), (item_event(None, has_run=True), (0.5, 0.25))])
            subject.observe(DECODE, 0.001)

    def drain() -> None:
        while not is_over.is_set():
            drained.extend(subject.drain())

    with ThreadPoolExecutor(5) as pool:
        draining = pool.submit(drain)
        list(pool.map(record, range(4)))
        is_over.set()
        draining.result()
    counted = Sums[str]()
    for sample in drained + subject.drain():
        counted[sample.counter.name] += int(sample.value)
    assert (counted["handler_requests_total"], counted["handler_items_total"]) == (8000, 8000)
    assert counted["handler_decode_seconds_count"] == 16_000


def test_reporter_sends_what_was_recorded_once_goes_on_after_a_failure_and_flushes_as_it_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subject, sent, has_failed = recorder(), Sums[str](), threading.Event()

    def emit(sample: Sample) -> None:
        if not has_failed.is_set():
            has_failed.set()
            raise OSError("a full disk")
        sent[sample.counter.name] += int(sample.value)

    reporter = Reporter(subject, emit, interval_s=0.01)
    reporter.start()
    subject.add(ITEMS, 1)
    assert has_failed.wait(60)
    for _ in range(5):
        subject.add(ITEMS, 1)
    reporter.stop()
    assert sent["handler_items_total"] == 5
    assert "Metrics could not be reported: OSError" in caplog.text


def test_metrics_yaml_declares_exactly_what_handlers_emit() -> None:
    declared = yaml.safe_load((ROOT / "deploy" / "metrics.yaml").read_text())["model_metrics"]
    assert {entry["name"]: tuple(entry["dimensions"]) for entry in declared["counter"]} == {
        counter.name: ("ModelName", "ModelVersion", *counter.labels) for counter in COUNTERS
    }
