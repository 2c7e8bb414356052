import threading
from collections import Counter as Sums

import pytest
import yaml

from deploy.models import ROOT
from handlers.metrics import (
    BATCH_SIZE,
    COUNTERS,
    DECODE,
    GAUGES,
    HISTOGRAMS,
    ITEM_ERRORS,
    ITEMS,
    Recorder,
    Reporter,
    Sample,
)


def recorder() -> Recorder:
    """One whose zeros have been sent."""
    fresh = Recorder()
    fresh.drain()
    return fresh


def test_recorder_batch_sizes_fill_cumulative_buckets() -> None:
    subject = recorder()
    for size in (1, 3, 3, 64, 300):
        subject.observe(BATCH_SIZE, size)

    samples = {(s.counter.name, *s.labels): s.value for s in subject.drain()}

    expected = {"1": 1, "2": 1, "3": 3, "48": 3, "56": 3, "64": 4, "128": 4, "256": 4, "+Inf": 5}
    assert {le: samples["handler_batch_size_bucket", le] for le in expected} == expected
    assert samples["handler_batch_size_sum",] == 371
    assert samples["handler_batch_size_count",] == 5
    assert not any(name.startswith("handler_decode") for name, *_ in samples)


def test_recorder_counters_sum_by_label_and_drain_once() -> None:
    subject = recorder()
    subject.add(ITEMS, 2)
    subject.add(ITEMS, 3)
    subject.add(ITEM_ERRORS, 1, "EmptyInput")
    subject.add(ITEM_ERRORS, 1, "CorruptInput")

    assert sorted(subject.drain()) == [
        Sample(ITEM_ERRORS, ("CorruptInput",), 1),
        Sample(ITEM_ERRORS, ("EmptyInput",), 1),
        Sample(ITEMS, (), 5),
    ]
    assert subject.drain() == []


def test_recorder_first_drain_declares_every_histogram_at_zero() -> None:
    samples = Recorder().drain()
    assert {sample.value for sample in samples} == {0}
    assert {sample.counter for sample in samples} == {c for h in HISTOGRAMS for c in (h.bucket, h.sum, h.count)}


def test_recorder_many_threads_lose_nothing() -> None:
    subject = recorder()

    def observe() -> None:
        for _ in range(500):
            subject.observe(DECODE, 0.001)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {s.value for s in subject.drain() if s.counter == DECODE.count} == {2000}


def test_reporter_recorded_work_is_sent_once_and_stop_flushes() -> None:
    subject, sent = recorder(), Sums[str]()
    reporter = Reporter(subject, lambda sample: sent.update({sample.counter.name: int(sample.value)}), interval_s=0.01)
    reporter.start()
    for _ in range(5):
        subject.add(ITEMS, 1)
        reporter.wake()
    reporter.stop()
    assert sent["handler_items_total"] == 5


def test_reporter_whose_emit_fails_once_reports_what_comes_after(caplog: pytest.LogCaptureFixture) -> None:
    subject, sent, has_failed = recorder(), dict[str, int](), threading.Event()

    def emit(sample: Sample) -> None:
        if not has_failed.is_set():
            has_failed.set()
            raise OSError("a full disk")
        sent[sample.counter.name] = int(sample.value)

    reporter = Reporter(subject, emit, interval_s=0.01)
    reporter.start()
    subject.add(ITEMS, 1)
    reporter.wake()
    assert has_failed.wait(20)
    subject.add(ITEMS, 7)
    reporter.wake()
    reporter.stop()
    assert sent["handler_items_total"] == 7
    assert "Metrics could not be reported: OSError" in caplog.text


def test_metrics_yaml_declares_exactly_what_handlers_emit() -> None:
    declared = yaml.safe_load((ROOT / "deploy" / "metrics.yaml").read_text())["model_metrics"]["counter"]
    assert {entry["name"]: tuple(entry["dimensions"]) for entry in declared} == {
        counter.name: ("ModelName", "ModelVersion", *counter.labels) for counter in COUNTERS
    }


def test_metrics_yaml_declares_the_heap_without_a_model() -> None:
    declared = yaml.safe_load((ROOT / "deploy" / "metrics.yaml").read_text())["model_metrics"]["gauge"]
    dimensions = {entry["name"]: entry["dimensions"] for entry in declared}
    assert {gauge.name: dimensions[gauge.name] for gauge in GAUGES} == {gauge.name: ["Level"] for gauge in GAUGES}
