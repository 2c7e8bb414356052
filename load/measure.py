"""Measures loads: one, with a live line on stderr, until Ctrl-C; or the highest that meets a target, by bisection.

Measurements are noisy, so the search measures its result once more, and lowers it until a load meets the target twice.
A bisection assumes that every load below a load that meets the target meets it, too.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from load import generate
from load.generate import Attack
from load.results import Latencies, Recording, Summary
from load.run_file import Run, make_step, now

L = TypeVar("L")
M = TypeVar("M")
# Seconds between two updates of the live line: as fast as a person reads, without delaying the generator.
REFRESH_S = 0.25


def measure(attack: Attack, run: Run, repeat: int = 1) -> Summary:
    """Run an attack and add its result to a run; after Ctrl-C, add it and raise KeyboardInterrupt."""
    title = f"{run.label}, {attack.load}" + (f", repeat {repeat}" if repeat > 1 else "")
    started_at = now()
    recording = generate.run(_generate(attack, title))
    summary = attack.summarise(recording)
    run.steps.append(make_step(attack, summary, recording, repeat, started_at))
    latency = ", ".join(f"p{p} {summary.latency_ms(p):.1f} ms" for p in (50, 99) if summary.completed) or "no response"
    mark = "".join(f"  NOT VALID: {reason}" for reason in summary.invalid_reasons)
    print(f"load: {title}: {summary.throughput_per_s:.1f}/s, {latency}{mark}", file=sys.stderr)
    if recording.stopped.is_set():
        raise KeyboardInterrupt
    return summary


async def _generate(attack: Attack, title: str) -> Recording:
    recording, loop = Recording(), asyncio.get_running_loop()

    def interrupt() -> None:
        recording.stop()
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C ends the process

    loop.add_signal_handler(signal.SIGINT, interrupt)
    watching = asyncio.create_task(_watch(title, recording))
    try:
        return await attack.generate(recording)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        watching.cancel()
        _show("")


async def _watch(title: str, recording: Recording) -> None:
    """Show rate and latency since the last update, until cancelled."""
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


def find_highest(loads: Sequence[L], measure: Callable[[L], M], is_met: Callable[[M], bool]) -> tuple[L, M] | None:
    """Return the highest of ascending loads that meets the target twice (the lowest: once), or None."""
    lowest = measure(loads[0])
    if not is_met(lowest):
        return None
    met, failed = 0, len(loads) - 1  # indices of the highest load that met the target, and of the lowest that did not
    if failed > 0 and is_met(measure(loads[failed])):
        met = failed
    while failed - met > 1:
        middle = (met + failed) // 2
        if is_met(measure(loads[middle])):
            met = middle
        else:
            failed = middle
    for index in range(met, 0, -1):
        again = measure(loads[index])
        if is_met(again):
            return loads[index], again
    return loads[0], lowest


def meets_target(summary: Summary, percent: float) -> bool:
    """Return whether `percent` of all requests, failed ones included, had a good response in time."""
    return summary.requests > 0 and 100 * summary.in_time >= percent * summary.requests
