"""One process of deploy.hosts.serve for each archive against one TorchServe with the same archives, in adaptive mode.

both run -> closed loops -> memory of the processes that compute -> clients that leave
each is started again -> seconds to its first response
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from math import inf
from pathlib import Path
from urllib.request import urlopen

import aiohttp
import psutil

from deploy.loader import manifest_of
from deploy.nodes.run.server import Server
from load import LoadError
from load.bench import archives, peer_process, samples
from load.bench.archives import CPU_ONLY, WINDOW
from load.bench.contender import Endpoint, Tuned, register
from load.bench.peer_process import Peer, PeerProcess
from load.bench.rounds import MOST_PEER_CLIENTS, PEER_CLIENTS, Bench, Comparison, Results, Row
from load.bench.texts import EMBEDDING
from load.bench.tuning import Tuning, choose, measure_rates
from load.generate import Check, ClosedLoop
from load.inputs import Inputs
from load.sandbox import run_server

ONE, TORCHSERVE = "one process", "TorchServe"
LANGUAGES, IMAGES = "language-id", "mobilenet-v2"
# Clients that leave, and seconds after which they do; then clients that wait.
LEAVING, LEAVE_S, WAITING = 200, 0.05, 10
SIDE = 224  # pixels of a side of their photographs: small enough to be sent before they leave
PATIENCE_S = 60.0


@contextmanager
def serve_one(
    folder: Path,
    inputs: Inputs,
    headers: Mapping[str, str] | None = None,
    gpu: int | None = None,
    words: Sequence[str] = (),
) -> Iterator[PeerProcess]:
    """Serve an archive; `words` are other archives and options."""
    device = () if gpu is None else ("--gpu", str(gpu))
    command = ("python", "-W", "ignore", "-m", "deploy.hosts.serve", str(folder), *words, *device, "--port")
    name = manifest_of(folder)["model"]["modelName"]
    peer = Peer(ONE, sys.prefix, command, f"predictions/{name}", headers=headers or {})
    with peer_process.start(peer, inputs.items[0].body) as running:
        yield running


@contextmanager
def serve_tuned(
    bench: Bench, folder: Path, inputs: Inputs, headers: Mapping[str, str], check: Check | None = None
) -> Iterator[Tuned]:
    """Serve an archive with as many processes as are best for each number of clients, one or one for each core."""
    title, choices, rates = f"{folder.name}, {ONE}", dict[Tuning, Endpoint](), dict[Tuning, dict[int, float]]()
    with ExitStack() as stack:
        for count in sorted({1, len(os.sched_getaffinity(0))}):
            words = ("--processes", str(count)) if count > 1 else ()
            running = stack.enter_context(serve_one(folder, inputs, headers, words=words))
            wait_for_all(running, count)
            each = choices[Tuning(count, 0)] = Endpoint(ONE, running.url, inputs, headers=headers, process=running)
            rates[Tuning(count, 0)] = measure_rates(title, Tuning(count, 0), each, check)
        chosen = choose(bench, title, rates)
        yield Tuned(ONE, {clients: choices[tuning] for clients, tuning in chosen.items()})


def wait_for_all(process: PeerProcess, count: int) -> None:
    """Wait until so many processes serve: the first answers while others start."""
    host, _, name = process.url.partition("/predictions/")
    ends_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_s:
        with urlopen(f"{host}/models/{name}", timeout=PATIENCE_S) as answer:  # noqa: S310 - of this machine
            if len(json.load(answer)[0]["workers"]) == count:
                return
        time.sleep(0.1)
    raise LoadError(f"{name}: not {count} processes in {PATIENCE_S:g} s")


def first_response_s(work: Path, name: str, inputs: Inputs) -> tuple[float, float]:
    """Return the seconds from the start of a process to its first response, of one process and of TorchServe."""
    started_s = time.perf_counter()
    with serve_one(work / name, inputs):
        ours_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    with run_server(work, extra=CPU_ONLY) as server:
        register(server, name, TORCHSERVE, inputs, WINDOW).run(ClosedLoop(1), 0.001, 0.0)
        return ours_s, time.perf_counter() - started_s


async def storm_s(url: str, body: bytes) -> float:
    """Return the seconds of the slowest of ten clients after a storm of others; infinite if one got no prediction."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(limit_s: float) -> bool:
            try:
                async with session.post(url, data=body, timeout=aiohttp.ClientTimeout(total=limit_s)) as response:
                    await response.read()
                    return response.status == 200
            except (aiohttp.ClientError, TimeoutError):
                return False

        await asyncio.gather(*(ask(LEAVE_S) for _ in range(LEAVING)))
        started_s = time.perf_counter()
        are_good = await asyncio.gather(*(ask(PATIENCE_S) for _ in range(WAITING)))
    return time.perf_counter() - started_s if all(are_good) else inf


def memory_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_full_info().pss) / 1e6


def worker_pid(server: Server, endpoint: Endpoint) -> int:
    return int(server.management.describe(endpoint.url.rpartition("/")[2])["workers"][0]["pid"])


def measure(bench: Bench) -> Iterator[Row]:
    """Measure a tiny model, texts and images, and clients that leave the example that classifies images."""
    texts, images = samples.singles(samples.texts()), samples.images()
    inputs = {LANGUAGES: texts, EMBEDDING: texts, IMAGES: images, bench.classifier: images}
    folders = {name: archives.build(bench, name, bench.work) for name in inputs}
    results, storms = Results(), list[tuple[float, float]]()
    with run_server(bench.work, extra=CPU_ONLY) as server, ExitStack() as stack:
        contenders, processes = {}, {}
        for name, each in inputs.items():
            running = processes[name] = stack.enter_context(serve_one(folders[name], each))
            ours = Endpoint(ONE, running.url, each, process=running)
            contenders[name] = [ours, register(server, name, TORCHSERVE, each, WINDOW)]
            bench.settle(contenders[name], ClosedLoop(MOST_PEER_CLIENTS))
        for number in bench:
            for name, clients in product((LANGUAGES, EMBEDDING, IMAGES), map(ClosedLoop, PEER_CLIENTS)):
                bench.compare(number, Comparison(clients, contenders[name], f"{name}, {clients}"), results)
            body, (ours, theirs) = samples.photographs(SIDE)[0], contenders[bench.classifier]
            with processes[bench.classifier].awake():
                storms.append((asyncio.run(storm_s(ours.url, body)), asyncio.run(storm_s(theirs.url, body))))
        memory = memory_mb(processes[EMBEDDING].pid), memory_mb(worker_pid(server, contenders[EMBEDDING][1]))
    starts = {name: [first_response_s(bench.work, name, inputs[name]) for _ in storms] for name in (EMBEDDING, IMAGES)}
    for name, clients in product((LANGUAGES, EMBEDDING, IMAGES), map(ClosedLoop, PEER_CLIENTS)):
        yield results.row(f"{name}, {clients}, /s", f"{name}, {clients}", ONE, TORCHSERVE)
        yield results.row(f"{name}, {clients}, p50 in ms", f"{name}, {clients}", ONE, TORCHSERVE, "p50_ms")
    for what, pairs in (
        *((f"{name}, start to first response, s", pairs) for name, pairs in starts.items()),
        (f"{EMBEDDING}, PSS in MB", [memory]),
        (f"{bench.classifier}, slowest of {WAITING} after {LEAVING} that left, s", storms),
    ):
        yield Row(what, [ours for ours, _ in pairs], TORCHSERVE, [theirs for _, theirs in pairs])
