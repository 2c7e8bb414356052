"""Compares adaptive with classic mode: sentence embedding with mixed lengths, and ResNet-152, each a part of its own.

    classic, one client        -> p50 -> the target: 12 times that
    classic, each batch size   -> offline throughput, highest Poisson rate within the target -> the best is classic
    for each round, both       -> that rate anew, one client, clients that saturate, Poisson at twice the offline

A 99th percentile of a few hundred requests is decided by two or three of them, and a queue that starts empty needs a
while to grow. So the rates of the rounds are measured for as long as `percentile_requests` take, or for `most_s`.

Both are the same weights and the same engine on one server; only the model-config.yaml differs. Offline throughput is
classic's with 64 clients that always wait, at the best of its batch sizes. Each figure is measured anew in every round,
in one mode right after the other, because what a shared machine gives changes from minute to minute.

On two cores the choice of the batch size takes some 7 minutes, a round 4 (embedding, 400 texts/s) or 9 (ResNet-152, 36
images/s): within their time the parts come to two or three rounds and to one. `--minutes 40` lets both have three.
"""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.archive import Recipe
from deploy.models import model
from deploy.sandbox import started
from deploy.server import Server
from deploy.sources import WeightsUnavailable
from load.bench.archives import write_mode
from load.bench.machine import wait_idle
from load.bench.peers import CPU_ONLY
from load.bench.photographs import photographs
from load.bench.progress import aside, progress
from load.bench.rounds import Rounds
from load.bench.table import Bound, Row, ratios, render
from load.bench.texts import single_bodies
from load.generate.attack import Attack, Load
from load.generate.closed_loop import ClosedLoop
from load.generate.inputs import Inputs
from load.generate.open_loop import OpenLoop
from load.generate.pacers import Poisson
from load.generate.target import Target
from load.generate.windows import Duration
from load.measure.summary import Summary
from load.runs.search import Grid, highest, is_met


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what both modes are measured with."""

    # The target for the latency, in p50s of one client: what the deployment is held to.
    target_times: int = 12
    # Share of all requests, in %, that must be answered within the target: that of MLPerf's Server scenario.
    percent: float = 99.0
    # batch_size of the adaptive model, requests: the window from which its worker chooses.
    window: int = 64
    # Clients that keep two of classic mode's largest batches of 32 full: one in the engine, one in the queue.
    clients: int = 64
    # Rate of the overload, in offline throughputs: no policy can answer more than half of it.
    overload: float = 2.0
    # max_batch_delay, ms: the least that TorchServe takes, since a loaded queue fills batches by itself.
    max_batch_delay_ms: int = 1
    # Share of the offline throughput with which the saturating clients are counted: leaves room below the target.
    saturating_share: float = 0.6
    # Rates that are tried, in offline throughputs: lowest, highest and the step between them.
    lowest_share: float = 0.3
    highest_share: float = 1.1
    share_step: float = 0.05
    # Seconds under load before the window opens.
    warm_up_s: float = 2.0
    # Requests that a percentile of the rounds is taken of: ten lie beyond the 99th.
    percentile_requests: int = 1000
    # Longest measurement for that, s: 840 requests at the 28 a second that ResNet-152 holds on two cores.
    most_s: float = 30.0
    # Clients that the worker and Java's compiler meet before anything is measured.
    settling_clients: int = 16


TUNING = Tuning()

# This deployment is held to these bounds.
OF_OFFLINE = Bound(0.85, is_minimum=True)
OVERLOAD_OF_OFFLINE = Bound(0.9, is_minimum=True)
ONE_CLIENT = Bound(1.0, is_minimum=False)
SATURATED = Bound(0.97, is_minimum=True)


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison.

    Attributes:
        name: name of the classic archive; the adaptive one's ends in -adaptive.
        batch_sizes: batch sizes that classic mode is tried with.
        times_classic: bound for the ratio of the highest rates.
        outside_ms: the part of the target that TorchServe's frontend, HTTP and the client need at their 99th
            percentile, and that the worker must not spend.
    """

    name: str
    batch_sizes: tuple[int, ...]
    times_classic: Bound
    outside_ms: float

    @property
    def adaptive(self) -> str:
        """Name of the adaptive archive."""
        return f"{self.name}-adaptive"

    def inputs(self) -> Inputs:
        """Make what is sent: photographs, or texts of mixed lengths."""
        if self.name == "resnet-152":
            return Inputs.of(photographs(), "image/jpeg")
        return Inputs.of(single_bodies(), "application/json")


EMBEDDING = Case("sentence-embedding", (8, 16, 32), Bound(1.2, is_minimum=True), outside_ms=15)
RESNET = Case("resnet-152", (4, 8, 16), Bound(1.0, is_minimum=True), outside_ms=25)


@dataclass(frozen=True, slots=True)
class Contender:
    """One registered model, and how it is measured."""

    server: Server
    name: str
    inputs: Inputs
    duration_s: float

    def run(self, load: Load, target_ms: float | None = None, least_s: float = 0.0) -> Summary:
        """Measure once, on a machine that does nothing else; longer where that is asked for, up to `most_s`."""
        wait_idle()
        target = Target(f"{self.server.settings.inference_url}/predictions/{self.name}")
        duration = Duration(max(self.duration_s, min(TUNING.most_s, least_s)))
        return Attack(target, self.inputs, load, duration, TUNING.warm_up_s, target_ms).run()

    def highest_rate(self, offline_per_s: float, target_ms: float, requests: int = 0) -> float:
        """Find the highest Poisson rate at which `percent` of all requests are answered well and within the target.

        Args:
            offline_per_s: throughput in requests per second, of which the rates that are tried are shares.
            target_ms: most that a latency may be.
            requests: least number of requests that each rate is measured for, as far as `most_s` allows.

        Returns:
            Requests per second; 0 where not even the lowest rate held.
        """

        def measure(rate_per_s: float) -> Summary:
            summary = self.run(OpenLoop(Poisson(rate_per_s, seed=0)), target_ms, requests / rate_per_s)
            held = 100 * summary.in_time / max(1, summary.requests)
            progress(f"{self.name}: {rate_per_s:.1f}/s: {held:.1f}% within {target_ms:.0f} ms")
            return summary

        shares = (TUNING.lowest_share, TUNING.highest_share, TUNING.share_step)
        grid = Grid(*(share * offline_per_s for share in shares))
        return highest(grid, measure, lambda summary: is_met(summary, TUNING.percent)).load or 0.0

    def register(self, batch_size: int) -> None:
        """Register it with this batch_size, which is the window of an adaptive worker, and let it settle."""
        self.server.register(
            self.name, self.name, batch_size=batch_size, max_batch_delay_ms=TUNING.max_batch_delay_ms, workers=1
        )
        self.run(ClosedLoop(TUNING.settling_clients))

    def unregister(self) -> None:
        """Make room for another batch_size."""
        self.server.management.unregister(self.name)


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions that the rounds are measured under.

    Attributes:
        target_ms: most that a latency may be, as a client sees it.
        batch_size: the best of classic mode.
        offline_per_s: classic's throughput, in requests per second, when clients always wait.
    """

    target_ms: float
    batch_size: int
    offline_per_s: float

    @property
    def clients(self) -> int:
        """Number of clients: enough to saturate, and few enough to be answered within the target (Little's law)."""
        in_target = self.offline_per_s * self.target_ms / 1000
        return min(TUNING.clients, max(2, int(TUNING.saturating_share * in_target)))


def run(case: Case, *, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure one case, and say what came out; the other arguments and the errors are those of load.bench.resnet."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as work:
        store = Path(work)
        progress(f"archives: {case.name}, {case.adaptive}")
        with aside():
            for name in (case.name, case.adaptive):
                _build(name, store)
        write_mode(store / case.name, "classic")
        with started(store, extra=CPU_ONLY) as server:
            classic = Contender(server, case.name, case.inputs(), duration_s)
            adaptive = Contender(server, case.adaptive, classic.inputs, duration_s)
            setting = _tuned(case, classic, adaptive, store)
            measured = _rounds(classic, adaptive, setting, rounds)
    return "\n".join(
        [
            f"Adaptive against classic: {case.name}, p99 within {setting.target_ms:.0f} ms "
            f"({TUNING.target_times} times one client's p50); stock is classic mode at its best batch_size for that, "
            f"{setting.batch_size}, and delay "
            f"{TUNING.max_batch_delay_ms} ms; window {TUNING.window}; offline {setting.offline_per_s:.1f}/s",
            "",
            render(table(case, setting, measured), is_markdown=is_markdown),
        ]
    )


def _build(name: str, store: Path) -> None:
    """Build a folder in the model store, of published weights or, where they cannot be had, of random ones."""
    entry = model(name)
    try:
        Recipe(entry, archive_format="no-archive", export_path=store).build()
    except WeightsUnavailable:
        Recipe(entry, "random", archive_format="no-archive", export_path=store).build()


def _tuned(case: Case, classic: Contender, adaptive: Contender, store: Path) -> Setting:
    classic.register(batch_size=1)
    target_ms = TUNING.target_times * classic.run(ClosedLoop(1)).latency_ms(50)
    classic.unregister()
    offline_per_s, rates = 0.0, {}
    for batch_size in case.batch_sizes:
        classic.register(batch_size)
        throughput_per_s = classic.run(ClosedLoop(TUNING.clients)).throughput_per_s
        offline_per_s = max(offline_per_s, throughput_per_s)
        progress(f"{case.name}: batch_size {batch_size}: {throughput_per_s:.1f}/s offline; target {target_ms:.0f} ms")
        rates[batch_size] = classic.highest_rate(throughput_per_s, target_ms)
        classic.unregister()
    best = max(rates, key=lambda batch_size: rates[batch_size])
    classic.register(best)
    set_target(store / case.adaptive, target_ms - case.outside_ms)
    adaptive.register(TUNING.window)
    return Setting(target_ms, best, offline_per_s)


def set_target(archive: Path, max_latency_ms: float) -> None:
    """Write an adaptive archive's target.

    Args:
        archive: a folder with a model-config.yaml.
        max_latency_ms: most that a request may take in the worker; kept to a tenth.
    """
    path = archive / "model-config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["handler"]["scheduling"]["max_latency_ms"] = round(max_latency_ms, 1)
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML


Measured = dict[str, dict[str, list[float]]]


def _rounds(classic: Contender, adaptive: Contender, setting: Setting, rounds: Rounds) -> Measured:
    measured: Measured = defaultdict(lambda: defaultdict(list))
    for each in rounds:
        for what, figure in _figures(setting, seed=each.number).items():
            for mode, contender in (("classic", classic), ("adaptive", adaptive)):
                value = figure(contender)
                progress(f"{each}, {what}, {mode}: {value:.1f}")
                measured[what][mode].append(value)
    return measured


def _figures(setting: Setting, seed: int) -> dict[str, Callable[[Contender], float]]:
    flood = OpenLoop(Poisson(TUNING.overload * setting.offline_per_s, seed))
    return {
        "rate": lambda each: each.highest_rate(setting.offline_per_s, setting.target_ms, TUNING.percentile_requests),
        "one": lambda each: each.run(ClosedLoop(1)).latency_ms(50),
        "saturated": lambda each: each.run(ClosedLoop(setting.clients)).throughput_per_s,
        "overload": lambda each: each.run(flood, setting.target_ms).goodput_per_s,
    }


def table(case: Case, setting: Setting, measured: Measured) -> list[Row]:
    """Make the rows; `stock` is classic mode, `ours` adaptive mode."""

    def both(what: str) -> tuple[list[float], list[float]]:
        return measured[what]["classic"], measured[what]["adaptive"]

    def row(what: str, series: Sequence[Sequence[float]], compared: Sequence[float], **of_row: Any) -> Row:
        return Row(what, series[0], series[1], [], compared, **of_row)

    offline = setting.offline_per_s
    rate, one, saturated, overload = both("rate"), both("one"), both("saturated"), both("overload")
    return [
        row("highest Poisson rate within the target, /s: ours / stock", rate, ratios(rate[1], rate[0]),
            bound=case.times_classic),
        row("the same: ours / offline throughput", rate, [value / offline for value in rate[1]], bound=OF_OFFLINE),
        row("2 x offline, goodput/s: ours / offline", overload, [value / offline for value in overload[1]],
            bound=OVERLOAD_OF_OFFLINE),
        row("1 client, p50 in ms: ours / stock", one, ratios(one[1], one[0]), bound=ONE_CLIENT),
        row(f"{setting.clients} clients, /s: ours / stock", saturated, ratios(saturated[1], saturated[0]),
            bound=SATURATED),
    ]  # fmt: skip
