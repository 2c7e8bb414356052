import threading
from collections import Counter as Sums
from concurrent.futures import ThreadPoolExecutor

import yaml

from deploy.models import ROOT
from handlers import metrics
from handlers.metrics import DECODE, ITEMS, SUCCEEDED, Recorder, Reporter, Sample, execution_event, item_event
from tests.handlers.serving import Log


def recorder() -> Recorder:
    fresh = Recorder()
    fresh.drain()
    return fresh


def test_events_of_a_request_and_a_micro_batch_fill_every_series() -> None:
    subject = recorder()
    subject.record([(execution_event(2), (0.25, 0.5, 0.125, 0.75, 2))])
    good, bad = item_event(None, has_run=True), item_event("EmptyInput", has_run=False)
    subject.record([(SUCCEEDED, (0.5, 2.0, 0.25)), (good, (0.5, 0.25)), (bad, (0.125,))])
    subject.add(ITEMS, 3)
    subject.add(metrics.ITEM_ERRORS, 1, "CorruptInput")
    samples = subject.drain()
    expected = {
        **{"requests_total success": 1, "outcome_seconds_total success": 2.0, "worker_wait_seconds_total": 0.25},
        **{"request_seconds_sum": 2.0, "request_seconds_count": 1, "encode_seconds_sum": 0.5},
        **{"encode_seconds_count": 1, "decode_seconds_sum": 0.625, "decode_seconds_count": 2},
        **{"items_total": 4, "item_errors_total EmptyInput": 1, "item_errors_total CorruptInput": 1},
        **{"engine_wait_seconds_sum": 0.25, "engine_wait_seconds_count": 1, "executions_total 2": 1},
        **{f"execution_seconds_total 2 {part}": s for part, s in (("input", 0.25), ("infer", 0.5), ("output", 0.125))},
        **{"forward_seconds_sum": 0.75, "forward_seconds_count": 1, "batch_size_sum": 2, "batch_size_count": 1},
    }
    found = {" ".join((s.counter.name, *s.labels)): s.value for s in samples if not s.counter.name.endswith("_bucket")}
    assert found == {f"handler_{name}": value for name, value in expected.items()}
    buckets = {s.labels[0]: s.value for s in samples if s.counter == DECODE.bucket}
    # Upper ends are inclusive: 0.125 lies below 0.25, 0.5 on the bound 0.5.
    assert [buckets[le] for le in ("0.25", "0.5", "+Inf")] == [1, 2, 2]
    # TorchServe writes numbers as they are, and numpy's are not Python's.
    assert {type(s.value) for s in samples} <= {int, float}
    assert subject.drain() == []


def test_first_drain_declares_every_histogram_at_zero_and_metrics_yaml_all_that_handlers_emit() -> None:
    samples = Recorder().drain()
    assert {sample.value for sample in samples} == {0}
    assert {sample.counter for sample in samples} == {c for h in metrics.HISTOGRAMS for c in (h.bucket, h.sum, h.count)}
    declared = yaml.safe_load((ROOT / "deploy" / "metrics.yaml").read_text())["model_metrics"]
    assert {entry["name"]: tuple(entry["dimensions"]) for entry in declared["counter"]} == {
        counter.name: ("ModelName", "ModelVersion", *counter.labels) for counter in metrics.COUNTERS
    }


def test_counter_is_sent_by_its_former_name_too() -> None:
    subject = recorder()
    subject.add(metrics.REJECTIONS, 1, "QueueFull")
    sent = [(each.counter.name, each.labels, each.value) for each in subject.drain()]
    assert sent == [(f"handler_{name}_total", ("QueueFull",), 1) for name in ("rejections", "refusals")]


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


def test_reporter_sends_what_was_recorded_once_goes_on_after_a_failure_and_flushes_as_it_stops(caplog: Log) -> None:
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
