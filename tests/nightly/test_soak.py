"""Mixed load with killed workers for minutes: what was lost, crossed or grown. `make soak`; a minute of it is a test.

    three examples in each mode -> one server -> canaries: inputs with distinguishable answers
        -> capacity, in closed loops -> Poisson arrivals at 70 % of it, beside clients that leave
        -> the same with `kill -9` of workers -> the last answers -> findings

    python -m tests.nightly.test_soak --minutes 10 --mode both --seed 1 --output soak.json

An answer is right when it is its canary's, which was asked alone before, crossed when it is another canary's, of any
model, and wrong otherwise. The exit code is 1 when anything was found.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest
import yaml

from deploy.archives.archive import Recipe
from deploy.models import model
from deploy.nodes.run.server import Server
from load.expect import matches, parse
from load.generate import Attack, ClosedLoop, OpenLoop
from load.inputs import Input, Inputs
from load.results import NO_ANSWER, OK, Exchange, Recording, Verdict
from load.sandbox import run_server
from load.schedules import Poisson
from load.served import Served
from tests import held_out
from tests.exports import shared
from tests.waiting import until
from torchserve_client.management import ManagementError

MODES = {"classic": ("classic",), "adaptive": ("adaptive",), "both": ("classic", "adaptive")}
# Example -> most that a number of an answer may differ from the canary's own: embeddings come in bf16, where the texts
# of a micro-batch move a component of some 0.05 by less than 0.01; the others are fp32 whose sums change their order.
TOLERANCES = {"sentence-embedding": 0.02, "mobilenet-v2": 0.003, "language-id": 0.0005}
# Two canaries' answers differ by this many tolerances, so that none can be right for both. With fewer than eight, one
# crossed answer in eight would meet its own input by chance.
APART, FEWEST, CANDIDATES = 3.0, 8, 64
QUEUE = 50  # requests that wait while no worker is there; a killed worker's queue fills up, and the next one gets 503
# Clients and seconds of each model's closed loop; share of its rate that is asked for then; most requests a second.
CLIENTS, CAPACITY_S, LOAD, MOST_PER_S = 4, 10.0, 0.7, 60.0
# Share of the minutes without kills; seconds that a worker is READY before it is killed, and until it counts as lost.
STEADY, PAUSE_S, LOST_S = 0.4, 5.0, 120.0
MOST_KILLS = 40  # of a long run: a worker that starts needs a whole processor
# Seconds until a request counts as unanswered; that a backlog has to drain, and the server to close what was left open.
TIMEOUT_S, SETTLE_S = 120.0, 10.0
# Statuses of overload and expiry; those of a worker that died, which only a request in flight may get; and the seconds
# after a kill in which TorchServe may still hand a request to the worker that is gone.
REFUSED, DIED, GRACE_S = (503, 504), (500, 507), 1.0
# Growth of a process: MB a minute in the last two thirds of the steady phase, where they come to more than so many MB:
# kernels for new shapes; Java's heap of 1 GiB. Descriptors and threads from the first look to the last.
MB_PER_MIN, WORKER_MB, JAVA_MB, HANDLES = 10.0, 60.0, 250.0, 24
JAVA, NOBODY = "java", 2**31 - 1

progress = partial(print, "soak:", file=sys.stderr, flush=True)


@dataclass(slots=True)
class Subject:
    """One model under load, its canaries with their answers, and what became of it."""

    name: str
    example: str
    served: Served
    inputs: list[Input] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)  # as JSON parses them
    recording: Recording = field(default_factory=Recording)
    kills: list[tuple[float, float]] = field(default_factory=list)  # when; when another one was READY, or infinite

    def shows(self, number: int, answer: Any, tolerances: float = 1.0) -> bool:
        return matches(self.answers[number], answer, tolerances * TOLERANCES[self.example])

    def choose(self, seed: int) -> None:
        """Send candidates alone, and keep those whose answers differ from all earlier ones."""
        for content in candidates(self.example, random.Random(seed)):
            self.answers.append(parse(self.served.send(content)))
            if any(self.shows(-1, other, APART) for other in [*self.answers[:-1], {}, [], None, ""]):
                self.answers.pop()
            else:
                self.inputs.append(content)
        progress(f"{self.name}: {len(self.inputs)} canaries")
        assert len(self.inputs) >= FEWEST

    def lost(self) -> Iterator[str]:
        """Yield the faults among its answers and kills."""
        exchanges = self.recording.exchanges
        progress(f"{self.name}: {len(self.kills)} kills, statuses", dict(Counter(each.status for each in exchanges)))
        found = Counter(kind for each in exchanges if (kind := fault(each, self.kills)))
        yield from (f"{self.name}: {count} {kind}" for kind, count in found.items())
        for ready_s in (0.0, *(ready_s for _, ready_s in self.kills)):
            if not any(each.is_good and each.sent_s > ready_s for each in exchanges):
                yield f"{self.name}: nothing was answered well" + " after its worker was killed" * (ready_s > 0)


def candidates(example: str, chance: random.Random) -> list[Input]:
    """Make inputs of an example: crops of photographs, or the beginnings of two sentences."""
    if example == "mobilenet-v2":
        return [Input(body, "image/jpeg") for body in held_out.crops(CANDIDATES).held_out]
    lines = [line.decode().split() for part in held_out.sentences() for line in part]
    pairs = [chance.sample(lines, 2) for _ in range(CANDIDATES)]
    texts = (" ".join([*one[: chance.randint(2, 20)], *other[: chance.randint(0, 20)]]) for one, other in pairs)
    return [Input(json.dumps({"text": text}).encode(), "application/json") for text in texts]


def fault(exchange: Exchange, kills: Sequence[tuple[float, float]]) -> str | None:
    if exchange.status == NO_ANSWER:
        return f"unanswered: {exchange.error}"
    if exchange.verdict in (Verdict.SWAPPED, Verdict.WRONG):
        return "crossed answers" if exchange.verdict is Verdict.SWAPPED else "wrong answers"
    was_killed = any(exchange.sent_s <= at_s + GRACE_S and exchange.answered_s >= at_s for at_s, _ in kills)
    if exchange.status == OK or exchange.status in REFUSED or (exchange.status in DIED and was_killed):
        return None
    return f"answers of status {exchange.status}, which nothing excuses"


def build(example: str, mode: str, store: Path) -> str:
    """Build an example in a mode, with the soak's queue, as a folder of a model store; return its name."""
    name, settings = f"{example}-{mode}", model(example).config()
    entry = replace(model(example), name=name, folder=store / f".{name}")
    handler = {**settings["handler"], "scheduling": {"mode": mode}}
    config = {**settings, "jobQueueSize": QUEUE, "minWorkers": 1, "maxWorkers": 1}
    if mode == "adaptive":
        # OpenVINO keeps memory for the largest micro-batch, 2 GB for 64 images.
        handler["scheduling"] |= {"latency_target_ms": 2000, "queue_timeout_ms": 5000}
        handler["max_batch_items"] = 16
        config |= {"batchSize": 64, "maxBatchDelay": 1}
    entry.folder.mkdir(parents=True)
    entry.config_path.write_text(yaml.safe_dump({**config, "handler": handler}))
    Recipe(entry, archive_format="no-archive", export_path=store, cache_path=shared()).build()
    return name


class Soak:
    """The phases of one run on a server whose models are ready."""

    def __init__(
        self, server: Server, subjects: Sequence[Subject], minutes: float, seed: int, share: float = LOAD
    ) -> None:
        self._server, self._subjects, self._seed, self._share = server, subjects, seed, share
        self._seconds, self._least_kills = 60 * minutes, min(10, max(2, round(minutes)))
        self._chance = random.Random(seed)
        # Name and process -> time, memory in MB, descriptors and threads, of each look.
        self._looks: dict[tuple[str, int], list[tuple[float, float, int, int]]] = {}
        self._steady_s = (0.0, 0.0)

    async def run(self) -> list[str]:
        capacities = await asyncio.gather(*map(self._capacity, self._subjects))
        beside = [asyncio.create_task(self._leave()), asyncio.create_task(self._watch())]
        await asyncio.gather(*map(self._load, self._subjects, capacities), self._phases())
        await asyncio.sleep(SETTLE_S)
        for task in beside:
            assert not task.done(), task.result()
            task.cancel()
        return [*(line for subject in self._subjects for line in subject.lost()), *self._grown()]

    def by_minute(self) -> dict[str, Any]:
        """Return each minute's p99 in ms and largest memory in MB, by model, and the minutes of the kills."""
        opens_s = self._steady_s[0] - STEADY * self._seconds / 3
        latencies, memory = defaultdict[tuple[str, int], list[float]](list), dict[tuple[str, int], float]()
        for subject in self._subjects:
            for each in (each for each in subject.recording.exchanges if each.is_good):
                latencies[subject.name, int((each.due_s - opens_s) // 60)].append(1000 * each.latency_s)
        for (name, _), looks in self._looks.items():
            for at_s, memory_mb, *_ in looks:
                place = name, int((at_s - opens_s) // 60)
                memory[place] = max(memory.get(place, 0.0), memory_mb)
        return {
            "p99_ms": _by_name({place: float(np.percentile(found, 99)) for place, found in latencies.items()}),
            "memory_mb": _by_name(memory),
            "kills_min": [round((at_s - opens_s) / 60, 1) for each in self._subjects for at_s, _ in each.kills],
        }

    async def _capacity(self, subject: Subject) -> float:
        attack = Attack(subject.served.target, Inputs(subject.inputs), ClosedLoop(CLIENTS), CAPACITY_S, 3.0)
        return attack.summarise(await attack.generate(Recording())).throughput_per_s

    async def _load(self, subject: Subject, capacity_per_s: float) -> None:
        rate_per_s = min(MOST_PER_S, max(1.0, self._share * capacity_per_s))
        progress(f"{subject.name}: capacity {capacity_per_s:.0f}/s, load {rate_per_s:.0f}/s")
        inputs, load = Inputs(subject.inputs), OpenLoop(Poisson(rate_per_s, self._seed))
        check = partial(self._verdict, subject)
        await Attack(subject.served.target, inputs, load, inf, check=check).generate(subject.recording)

    def _verdict(self, subject: Subject, number: int, body: bytes) -> Verdict:
        answer = parse(body)
        if subject.shows(number, answer):
            return Verdict.RIGHT
        is_anothers = any(each.shows(other, answer) for each in self._subjects for other in range(len(each.answers)))
        return Verdict.SWAPPED if is_anothers else Verdict.WRONG

    async def _phases(self) -> None:
        opens_s, steady_s, kills = time.perf_counter(), STEADY * self._seconds, 0
        pause_s = max(PAUSE_S, (self._seconds - steady_s) / MOST_KILLS)
        self._steady_s = (opens_s + steady_s / 3, opens_s + steady_s)
        await asyncio.sleep(steady_s)
        while time.perf_counter() < opens_s + self._seconds or kills < self._least_kills:
            # Each worker twice in a row, so that one that has just come back is killed too.
            subject = self._subjects[kills // 2 % len(self._subjects)]
            kills += 1
            killed_s, ready_s = await asyncio.to_thread(self._kill, subject)
            progress(f"{subject.name}: its worker was killed, and READY {ready_s - killed_s:.1f} s later")
            await asyncio.sleep(pause_s)
        await asyncio.sleep(SETTLE_S)
        for subject in self._subjects:
            subject.recording.close()

    def _kill(self, subject: Subject) -> tuple[float, float]:
        pid, killed_s = self._worker(subject.name), time.perf_counter()
        subject.kills.append((killed_s, inf))
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        with suppress(AssertionError):
            until(lambda: self._worker(subject.name) not in (None, pid), LOST_S)
            subject.kills[-1] = (killed_s, time.perf_counter())
        return subject.kills[-1]

    def _worker(self, name: str) -> int | None:
        """Return the process of a model's one worker where it is READY; while it starts, TorchServe has -1."""
        with suppress(ManagementError, psutil.Error):
            (worker,) = self._server.management.describe(name)["workers"]
            if worker["status"] == "READY" and psutil.Process(int(worker["pid"])).ppid() == self._server.pid():
                return int(worker["pid"])
        return None

    async def _leave(self) -> None:
        """Send a request or half of it and close or reset the connection, again and again."""
        while True:
            subject = self._chance.choice(self._subjects)
            content, url = self._chance.choice(subject.inputs), urlsplit(subject.served.target.url)
            with suppress(OSError):
                _, writer = await asyncio.open_connection(url.hostname, url.port)
                head = f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: {content.content_type}\r\n"
                body = content.body[: len(content.body) // self._chance.choice((1, 2))]
                writer.write(f"{head}Content-Length: {len(content.body)}\r\n\r\n".encode() + body)
                try:
                    await asyncio.sleep(self._chance.uniform(0, 0.1))
                finally:
                    self._chance.choice((writer.close, writer.transport.abort))()
            await asyncio.sleep(self._chance.expovariate(4.0))

    async def _watch(self) -> None:
        while True:
            pids = {JAVA: self._server.pid()}
            pids |= {each.name: await asyncio.to_thread(self._worker, each.name) for each in self._subjects}
            for name, pid in pids.items():
                with suppress(psutil.Error):
                    process = psutil.Process(pid or NOBODY)
                    memory_mb, now_s = process.memory_info().rss / 1e6, time.perf_counter()
                    look = now_s, memory_mb, process.num_fds(), process.num_threads()
                    self._looks.setdefault((name, process.pid), []).append(look)
            await asyncio.sleep(1.0)

    def _grown(self) -> Iterator[str]:
        for (name, _), looks in self._looks.items():
            steady = np.array([look[:2] for look in looks if self._steady_s[0] <= look[0] <= self._steady_s[1]])
            if len(steady) > 1:
                minutes, most_mb = (steady[:, 0] - steady[0, 0]) / 60, JAVA_MB if name == JAVA else WORKER_MB
                mb_per_min = float(np.polyfit(minutes, steady[:, 1], 1)[0])
                if mb_per_min > MB_PER_MIN and mb_per_min * minutes[-1] > most_mb:
                    yield f"{name}: memory grows by {mb_per_min:.0f} MB a minute"
            for at, what in ((2, "descriptors"), (3, "threads")):
                if looks[-1][at] - looks[0][at] > HANDLES:
                    yield f"{name}: {looks[0][at]} {what} at the start, {looks[-1][at]} at the end"


def _by_name(found: Mapping[tuple[str, int], float]) -> dict[str, list[tuple[int, float]]]:
    names = dict.fromkeys(name for name, _ in found)
    return {
        name: [(minute, round(value, 1)) for (other, minute), value in sorted(found.items()) if other == name]
        for name in names
    }


def soaked(minutes: float, mode: str, seed: int, share: float = LOAD, output: Path | None = None) -> list[str]:
    """Build the models, start a server, soak it, write `output`, and return what was found."""
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as folder:
        names = {build(example, each, Path(folder)): example for example in TOLERANCES for each in MODES[mode]}
        with run_server(Path(folder)) as server:
            subjects = []
            for name, example in names.items():
                window = 64 if name.endswith("adaptive") else 16
                server.register(name, name, batch_size=window, max_batch_delay_ms=1, workers=1)
                urls = server.settings.inference_url, server.settings.management_url
                subjects.append(subject := Subject(name, example, Served(name, None, *urls, timeout_s=TIMEOUT_S)))
                subject.choose(seed)
            soak = Soak(server, subjects, minutes, seed, share)
            findings = asyncio.run(soak.run())
            if output is not None:
                output.write_text(json.dumps(soak.by_minute()) + "\n", encoding="utf-8")
            return findings


@pytest.mark.timeout(900)  # archives, six workers, a minute of load, kills beyond it
def test_minute_of_mixed_load_with_killed_workers_loses_crosses_and_leaks_nothing() -> None:
    assert soaked(minutes=1, mode="both", seed=1) == []


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.nightly.test_soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of load, kills included; default: 10")
    parser.add_argument("--mode", choices=MODES, default="both", help="of the models; default: both, side by side")
    parser.add_argument("--seed", type=int, default=1, help="decides on inputs and arrivals; default: 1")
    parser.add_argument("--share", type=float, default=LOAD, help=f"of each model's own rate; default: {LOAD}")
    parser.add_argument("--output", type=Path, help="file of each minute's p99 and memory")
    findings = soaked(**vars(parser.parse_args()))
    print("\n".join(findings) or "nothing was lost, crossed, wrong or grown")
    sys.exit(1 if findings else 0)
