"""Stored runs with numbers that are known."""

from dataclasses import replace

from load.generate.pacers import Poisson
from load.measure.exchange import Exchange
from load.measure.exchanges import Exchanges
from load.measure.rates import of_window
from load.measure.recording import Recording
from load.measure.server_metrics import ServerStatistics
from load.measure.summary import summarise
from load.runs.run_file import Run, StepResult
from load.runs.scenarios import Step, closed, opened

TIMING = 'decode;dur=2.00, wait;dur=1.00, forward;dur=40.00, encode;dur=0.50, batch;desc="4"'
# Half of the latencies are within it.
THRESHOLD_MS = 50.5
SERVER = ServerStatistics(queue_ms=5.0, stages_ms={}, micro_batches={"4": 25}, mean_batch_size=4.0)


def step_result(step: Step, throughput_per_s: float = 50.0, repeat: int = 1, minute: int = 0) -> StepResult:
    """Ten seconds with latencies of 1 .. 100 ms, a failure and a lost connection among them."""
    count = round(throughput_per_s * 10)
    exchanges = [
        Exchange(n / count * 9.8, n / count * 9.8, n / count * 9.8 + (1 + n % 100) / 1e3, 200, server_timing=TIMING)
        for n in range(count)
    ]
    exchanges += [Exchange(5, 5, 5.001, 503), Exchange(6, 6, 7, 0, error="ServerDisconnectedError")]
    recording = Recording(Exchanges(exchanges), opens_s=0, closes_s=10)
    return StepResult.of(
        step,
        summarise(recording, of_window, THRESHOLD_MS),
        recording,
        SERVER,
        repeat=repeat,
        started_at=f"2026-01-01T00:{minute:02}:00.000+00:00",
        latency_threshold_ms=THRESHOLD_MS,
    )


def run(label: str = "ours", *throughputs_per_s: float) -> Run:
    """A step of a closed loop and one of an open loop, or repeats of the first."""
    made = Run(label, "2026-01-01T00:00:00.000+00:00", "m", "http://x/predictions/m", {"batchSize": 4}, {}, ["a.jpg"])
    if throughputs_per_s:
        made.steps.extend(
            step_result(closed(8), each, number, minute=number) for number, each in enumerate(throughputs_per_s, 1)
        )
    else:
        made.steps.extend([step_result(closed(8)), step_result(opened(Poisson(60)), 60)])
    return made


def invalid(result: StepResult) -> StepResult:
    """The same, not to be believed."""
    return replace(result, is_valid=False, invalid_reason="the generator <fell> behind")
