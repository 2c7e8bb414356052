"""What the server says of itself: its counters, and the headers of its answers."""

import pytest

from load.measure.server_metrics import Counters, ServerStatistics
from load.measure.server_timing import Timings, parse

BEFORE = """\
# HELP handler_batch_size_sum Torchserve prometheus counter metric with unit: count
# TYPE handler_batch_size_sum counter
handler_batch_size_bucket{le="1",ModelName="m",ModelVersion="1.0",Hostname="h",} 2.0
handler_batch_size_bucket{le="8",ModelName="m",ModelVersion="1.0",Hostname="h",} 2.0
handler_batch_size_bucket{le="+Inf",ModelName="m",ModelVersion="1.0",Hostname="h",} 2.0
handler_batch_size_sum{ModelName="m",ModelVersion="1.0",Hostname="h",} 2.0
handler_batch_size_count{ModelName="m",ModelVersion="1.0",Hostname="h",} 2.0
ts_inference_requests_total{model_name="m",model_version="default",hostname="h",} 2.0
ts_queue_latency_microseconds{model_name="m",model_version="default",hostname="h",} 1000.0
"""
AFTER = """\
handler_batch_size_bucket{le="1",ModelName="m",ModelVersion="1.0",Hostname="h",} 3.0
handler_batch_size_bucket{le="8",ModelName="m",ModelVersion="1.0",Hostname="h",} 7.0
handler_batch_size_bucket{le="+Inf",ModelName="m",ModelVersion="1.0",Hostname="h",} 7.0
handler_batch_size_sum{ModelName="m",ModelVersion="1.0",Hostname="h",} 27.0
handler_batch_size_count{ModelName="m",ModelVersion="1.0",Hostname="h",} 7.0
handler_batch_size_sum{ModelName="other",ModelVersion="1.0",Hostname="h",} 999.0
handler_forward_seconds_sum{ModelName="m",ModelVersion="1.0",Hostname="h",} 0.4
handler_forward_seconds_count{ModelName="m",ModelVersion="1.0",Hostname="h",} 5.0
handler_forward_seconds_sum{ModelName="m",ModelVersion="2.0",Hostname="h",} 0.6
handler_forward_seconds_count{ModelName="m",ModelVersion="2.0",Hostname="h",} 5.0
ts_inference_requests_total{model_name="m",model_version="default",hostname="h",} 22.0
ts_queue_latency_microseconds{model_name="m",model_version="default",hostname="h",} 61000.0
"""


def test_statistics_of_two_scrapes_are_their_difference() -> None:
    added = Counters.parse(AFTER, "m").since(Counters.parse(BEFORE, "m"))
    statistics = ServerStatistics.of(added)
    assert statistics.queue_ms == pytest.approx(3.0)  # 60 ms over 20 requests
    assert statistics.stages_ms == {"forward": pytest.approx(100.0)}  # 1 s over 10, of both versions
    assert statistics.micro_batches == {"1": 1, "8": 4}
    assert statistics.mean_batch_size == 5.0


def test_statistics_of_a_model_without_counters_are_unknown() -> None:
    assert ServerStatistics.of(Counters.parse(AFTER, "absent")) == ServerStatistics(None, {}, {}, None)


@pytest.mark.parametrize(
    ("header", "durations_ms", "batch"),
    [
        (
            'decode;dur=1.61, wait;dur=2.40, forward;dur=178.20, encode;dur=0.04, batch;desc="8"',
            {"decode": 1.61, "wait": 2.4, "forward": 178.2, "encode": 0.04},
            8,
        ),
        ("total;dur=5", {"total": 5.0}, None),
        ("cache;desc=hit;dur=1", {}, None),
        ("batch;desc=12", {}, 12),
        ("forward;dur=1.2.3, decode;dur=.", {}, None),
        ("", {}, None),
        (";;;,,=", {}, None),
    ],
)
def test_header_of_timings_is_parsed_as_far_as_it_is_understood(
    header: str, durations_ms: dict[str, float], batch: int | None
) -> None:
    assert parse(header) == (durations_ms, batch)


def test_timings_of_many_answers_count_batches_not_requests() -> None:
    headers = ['forward;dur=10, batch;desc="1"', *['forward;dur=40, batch;desc="4"'] * 4, None, "forward;dur=90"]
    timings = Timings.of(headers)
    assert timings.mean_ms == {"forward": pytest.approx((10 + 4 * 40 + 90) / 6)}
    assert timings.requests_by_batch_size == {1: 1, 4: 4}
    # A batch of 1 and a batch of 4.
    assert timings.mean_batch_size == 2.5
    assert Timings.of([]).mean_batch_size is None
