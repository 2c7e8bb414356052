"""Shows a line that lives while a step is measured, and one that stays."""

import asyncio
import time

from rich.console import Console

from load.measure.latencies import Latencies
from load.measure.recording import Recording
from load.runs.run_file import StepResult

# Seconds between two states of the line: a person reads no faster, and the generator has its core to itself.
REFRESH_S = 0.25


class Progress:
    """Writes lines to stderr, so that the table on stdout stays clean; without a terminal only the line that stays."""

    def __init__(self, console: Console) -> None:
        self._console = console

    async def watch(self, title: str, recording: Recording) -> None:
        """Show rate and latency of the last quarter of a second, until cancelled."""
        if not self._console.is_terminal:
            return
        seen, failed, since_s = 0, 0, time.perf_counter()
        with self._console.status(title) as status:
            while True:
                await asyncio.sleep(REFRESH_S)
                now_s = time.perf_counter()
                new = recording.exchanges[seen:]
                good = Latencies(each.latency_s for each in new if each.is_good)
                failed += len(new) - good.count
                phase = "warming up" if not recording.is_open else f"{now_s - recording.opens_s:.0f} s"
                if recording.is_closed:
                    phase = "waiting for the last answers"
                latency = f", p50 {good.percentile_ms(50):.1f} ms" if good.count else ""
                status.update(
                    f"{title}: {phase}, {good.count / (now_s - since_s):.0f}/s{latency}, "
                    f"{recording.in_flight} in flight, {len(recording.exchanges)} answered, {failed} failed"
                )
                seen, since_s = seen + len(new), now_s

    def finished(self, title: str, result: StepResult) -> None:
        """Write the line that stays: the result of a step."""
        latency = result.latency_ms
        percentiles = ", ".join(f"{name} {latency[name]:.1f}" for name in ("p50", "p99") if name in latency)
        mark = "" if result.is_valid else f"  NOT VALID: {result.invalid_reason}"
        self._console.print(
            f"load: {title}: {result.throughput_per_s:.1f}/s, ms: {percentiles or 'none'}{mark}",
            highlight=False,
            soft_wrap=True,
        )
