"""Measures one load: a live line on stderr, one that stays, and Ctrl-C keeps what was measured."""

import asyncio
import signal
import sys
import time

from load import generate
from load.generate import Attack
from load.results import Latencies, Recording, Summary
from load.run_file import Run, now, step_of

# Seconds between two states of the live line: a person reads no faster, and the generator has its core to itself.
REFRESH_S = 0.25


def measure(attack: Attack, run: Run, repeat: int = 1) -> Summary:
    """Make an attack, and add its result to a run.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it early; what was measured until then is in the run.
    """
    title = f"{run.label}, {attack.load}" + (f", repeat {repeat}" if repeat > 1 else "")
    started_at = now()
    recording = generate.run(_watched(attack, title))
    summary = attack.summarise(recording)
    run.steps.append(step_of(attack, summary, recording, repeat, started_at))
    latency = ", ".join(f"p{p} {summary.latency_ms(p):.1f} ms" for p in (50, 99) if summary.completed) or "no answer"
    mark = "".join(f"  NOT VALID: {reason}" for reason in summary.invalid_reasons)
    print(f"load: {title}: {summary.throughput_per_s:.1f}/s, {latency}{mark}", file=sys.stderr)
    if recording.stopped.is_set():
        raise KeyboardInterrupt
    return summary


async def _watched(attack: Attack, title: str) -> Recording:
    recording, loop = Recording(), asyncio.get_running_loop()

    def interrupt() -> None:
        recording.stop()
        # A second Ctrl-C ends the process as it always does.
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    watching = asyncio.create_task(_watch(title, recording))
    try:
        return await attack.generate(recording)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        watching.cancel()
        _show("")


async def _watch(title: str, recording: Recording) -> None:
    """Show rate and latency of the last quarter of a second, until cancelled."""
    seen, failed, since_s = 0, 0, time.perf_counter()
    while True:
        await asyncio.sleep(REFRESH_S)
        now_s = time.perf_counter()
        new = recording.exchanges[seen:]
        good = Latencies(each.latency_s for each in new if each.is_good)
        failed += len(new) - len(good)
        phase = "warming up" if now_s < recording.opens_s else f"{now_s - recording.opens_s:.0f} s"
        latency = f", p50 {good.percentile_ms(50):.1f} ms" if good else ""
        _show(
            f"{title}: {phase}, {len(good) / (now_s - since_s):.0f}/s{latency}, {recording.in_flight} in flight, "
            f"{len(recording.exchanges)} answered, {failed} failed"
        )
        seen, since_s = seen + len(new), now_s


def _show(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)
