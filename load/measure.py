"""Measures one load after the other: a live line on stderr, and Ctrl-C keeps what was measured."""

import asyncio
import signal
import sys
import time
from datetime import UTC, datetime

from load import generate
from load.generate import Attack
from load.results import Latencies, Recording, Summary
from load.run_file import Run, Step

# Seconds between two states of the live line: a person reads no faster, and the generator has its core to itself.
REFRESH_S = 0.25
CLEAR_LINE = "\r\x1b[2K"


def now() -> str:
    """Return the time in UTC, as in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def measure(attack: Attack, run: Run, repeat: int = 1) -> Summary:
    """Make an attack, and add its result to a run.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it early; what was measured until then is in the run.
    """
    title = f"{run.label}, {attack.load}" + (f", repeat {repeat}" if repeat > 1 else "")
    started_at = now()
    recording = generate.run(_watched(attack, title))
    summary = attack.summarise(recording)
    threshold_ms = attack.latency_threshold_ms
    step = Step.of(
        attack.load, summary, recording, repeat=repeat, started_at=started_at, latency_threshold_ms=threshold_ms
    )
    run.steps.append(step)
    percentiles = ", ".join(f"{name} {step.latency_ms[name]:.1f}" for name in ("p50", "p99") if step.latency_ms)
    mark = "" if step.is_valid else f"  NOT VALID: {step.invalid_reason}"
    print(f"load: {title}: {step.throughput_per_s:.1f}/s, ms: {percentiles or 'none'}{mark}", file=sys.stderr)
    if recording.stopped.is_set():
        raise KeyboardInterrupt
    return summary


async def _watched(attack: Attack, title: str) -> Recording:
    recording, loop = Recording(), asyncio.get_running_loop()

    def interrupted() -> None:
        recording.stop()
        # A second Ctrl-C ends the process as it always does.
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupted)
    watching = asyncio.create_task(_watch(title, recording))
    try:
        return await attack.generate(recording)
    finally:
        watching.cancel()
        loop.remove_signal_handler(signal.SIGINT)


async def _watch(title: str, recording: Recording) -> None:
    """Show rate and latency of the last quarter of a second, until cancelled; nothing where stderr is no terminal."""
    seen, failed, since_s = 0, 0, time.perf_counter()
    try:
        while sys.stderr.isatty():
            await asyncio.sleep(REFRESH_S)
            now_s = time.perf_counter()
            new = recording.exchanges[seen:]
            good = Latencies(each.latency_s for each in new if each.is_good)
            failed += len(new) - good.count
            phase = "warming up" if now_s < recording.opens_s else f"{now_s - recording.opens_s:.0f} s"
            if recording.closed.is_set():
                phase = "waiting for the last answers"
            latency = f", p50 {good.percentile_ms(50):.1f} ms" if good.count else ""
            print(
                f"{CLEAR_LINE}{title}: {phase}, {good.count / (now_s - since_s):.0f}/s{latency}, "
                f"{recording.in_flight} in flight, {len(recording.exchanges)} answered, {failed} failed",
                end="",
                file=sys.stderr,
                flush=True,
            )
            seen, since_s = seen + len(new), now_s
    finally:
        if sys.stderr.isatty():
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)
