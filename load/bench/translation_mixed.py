"""Measures who waits for whom in adaptive translation: short texts beside long ones, and beside one that never ends.

    Poisson arrivals, one text in twenty ten times as long -> the median of the short ones, now and before
    31 short texts at once; the same and a runaway         -> the slowest of the 31, with and without it

Latency counts from the time that a request was due. Both are the same weights, settings and server.
"""

import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from statistics import median

import requests

from deploy.sandbox import started
from load.bench.machine import Processor, wait_idle
from load.bench.peers import CPU_ONLY, BenchError, ServedModel
from load.bench.progress import progress
from load.bench.rounds import Rounds, Series
from load.bench.table import Bound, Row, ratios, render
from load.bench.translation_archives import BEFORE, CHECKPOINT, build_before, build_now
from load.generate.pacers import Poisson
from load.measure.exchange import OK


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what is sent, and how often."""

    # Requests that a worker sees; clients that keep it busy while its capacity is measured.
    window: int = 64
    clients: int = 32
    # Share of the capacity of before, at which both are measured.
    load_share: float = 0.6
    # One text in so many is long, and how many times as long as a short one.
    long_every: int = 20
    long_times: int = 10
    # Least seconds of Poisson arrivals: at five a second, a hundred and fifty.
    poisson_s: float = 30.0
    # Short texts beside the runaway, and how often each is measured in a round; the fastest counts.
    beside: int = 31
    tries: int = 3
    # Seconds that an answer may take.
    timeout_s: float = 120.0


TUNING = Tuning()
SHORT_OF_BEFORE = Bound(0.6, is_minimum=False)
DELAYED = Bound(1.2, is_minimum=False)

SHORT = (
    "The weather is nice today.",
    "We are going to the beach with our friends.",
    "The bank left its interest rate unchanged.",
    "Nobody knew why the train had stopped.",
    "The children were asleep when we came home.",
)
# Marian answers this with the same letter for ever.
RUNAWAY = "x" * 60

SETTINGS = {
    "continuousBatching": True,
    "batchSize": TUNING.window,
    "maxBatchDelay": 1,
    "minWorkers": 1,
    "maxWorkers": 1,
    "responseTimeout": 120,
    "startupTimeout": 120,
    "handler": {"scheduling": {"mode": "adaptive", "max_latency_ms": 5000, "queue_timeout_ms": 60_000}},
}


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure, and say what came out; arguments and errors are those of load.bench.resnet."""
    if not CHECKPOINT.is_dir():
        return f"Translation, mixed: not measured, for lack of a checkpoint ({CHECKPOINT.name})"
    series: Series = defaultdict(list)
    # The capacity is that for the same mix.
    short = (SHORT[number % len(SHORT)] for number in range(TUNING.long_every - 1))
    bodies = [json.dumps({"text": text}).encode() for text in (*short, _long(0))]
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as work:
        store = Path(work) / "store"
        store.mkdir()
        progress("archives: adaptive translation, now and before")
        names = {"now": "adaptive-now"}
        build_now(names["now"], store, Path(work), SETTINGS)
        if build_before("adaptive-before", store, Path(work), SETTINGS):
            names["before"] = "adaptive-before"
        with started(store, extra=CPU_ONLY) as server:
            served = {way: ServedModel(server, name, bodies, TUNING.window, 1) for way, name in names.items()}
            for each in served.values():
                each.register()
                each.answer()
            for number in rounds:
                slowest = served.get("before", served["now"])
                capacity = slowest.measure(TUNING.clients, duration_s).throughput_per_s
                for way, each in served.items():
                    wait_idle()
                    short_s = poisson(each.url, TUNING.load_share * capacity, max(TUNING.poisson_s, duration_s))
                    series[f"{way}, short p50"].append(1e3 * median(short_s))
                    series[f"{way}, alone"].append(1e3 * slowest_beside(each.url, has_runaway=False))
                    series[f"{way}, beside"].append(1e3 * slowest_beside(each.url, has_runaway=True))
                    told = {name: round(values[-1]) for name, values in series.items() if name.startswith(way)}
                    progress(f"{number}, {capacity:.1f}/s before, {told}")
    return "\n".join(
        [
            f"Translation with {CHECKPOINT.name}, adaptive: Poisson at {TUNING.load_share:g} of the capacity of "
            f"{BEFORE[:7]}, one text in {TUNING.long_every} {TUNING.long_times} times as long; on {Processor.here()}",
            "",
            render(table(series), is_markdown=is_markdown),
        ]
    )


def table(series: Series) -> list[Row]:
    """Make the rows: now against before, and beside a runaway against without."""
    now = "translation, ms of the slowest of 31: ours beside a runaway / without"
    rows = [
        Row(now, series["now, alone"], series["now, beside"], [],
            ratios(series["now, beside"], series["now, alone"]), bound=DELAYED),
    ]  # fmt: skip
    if "before, short p50" not in series:
        return rows
    then, ours = series["before, short p50"], series["now, short p50"]
    return [
        Row("translation, p50 of short texts in ms: ours / before", then, ours, [],
            ratios(ours, then), bound=SHORT_OF_BEFORE),
        *rows,
        Row("translation, the same of before / without", series["before, alone"], series["before, beside"], [],
            ratios(series["before, beside"], series["before, alone"])),
    ]  # fmt: skip


def poisson(url: str, rate_per_s: float, duration_s: float) -> list[float]:
    """Send texts by a schedule, most of them short.

    Args:
        url: the model's address.
        rate_per_s: requests per second.
        duration_s: for how long.

    Returns:
        The seconds that each short text took, from when it was due.
    """
    due = list(takewhile(lambda due_s: due_s < duration_s, Poisson(rate_per_s).due_s()))
    chance = random.Random(0)
    texts = [_long(number) if chance.randrange(TUNING.long_every) == 0 else SHORT[number % len(SHORT)]
             for number in range(len(due))]  # fmt: skip
    started_s = time.perf_counter() + 0.1
    with ThreadPoolExecutor(len(due)) as pool:
        tasks = [pool.submit(_ask, url, text, started_s + due_s) for text, due_s in zip(texts, due, strict=True)]
        took = [task.result() for task in tasks]
    return [took_s for text, took_s in zip(texts, took, strict=True) if text in SHORT]


def slowest_beside(url: str, *, has_runaway: bool) -> float:
    """Send 31 short texts at once, and with them a runaway or not; the slowest of the 31 in seconds, at best."""
    return min(_slowest(url, has_runaway=has_runaway) for _ in range(TUNING.tries))


def _slowest(url: str, *, has_runaway: bool) -> float:
    texts = [SHORT[number % len(SHORT)] for number in range(TUNING.beside)]
    with ThreadPoolExecutor(TUNING.beside + 1) as pool:
        started_s = time.perf_counter() + 0.2
        runaway = pool.submit(_ask, url, RUNAWAY, started_s) if has_runaway else None
        took = [task.result() for task in [pool.submit(_ask, url, text, started_s) for text in texts]]
        if runaway is not None:
            runaway.result()
    return max(took)


def _ask(url: str, text: str, due_s: float) -> float:
    """Send one text when it is due; the seconds from then to its answer."""
    with requests.Session() as session:
        session.trust_env = False
        time.sleep(max(0.0, due_s - time.perf_counter()))
        response = session.post(url, json={"text": text}, timeout=TUNING.timeout_s)
    if response.status_code != OK:
        raise BenchError(f"{url} answered {response.status_code}: {response.text}")
    return time.perf_counter() - due_s


def _long(number: int) -> str:
    return " ".join(_cycle(SHORT, number, TUNING.long_times))


def _cycle(texts: Sequence[str], start: int, count: int) -> Iterator[str]:
    return (texts[(start + index) % len(texts)] for index in range(count))
