"""Two processes behind one port, two archives in one process, and a cache for texts of which half repeat.

two processes over one and over TorchServe: the peers' small network, texts and images
two archives in one process: requests to both at once, over half of the rate that each has by itself
a cache: each text twice, on over off
"""

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle

from deploy.archives.archive import Recipe
from deploy.models import model
from load.bench import archives, samples
from load.bench.archives import ADAPTIVE, CPU_ONLY, copy_with
from load.bench.contender import Contender, Endpoint, register
from load.bench.hosts import IMAGES, ONE, TORCHSERVE, serve_one, wait_for_all
from load.bench.peers import QUEUE, encode, export
from load.bench.rounds import MOST_PEER_CLIENTS, PEER_CLIENTS, Bench, Comparison, Row, redirect_output
from load.bench.texts import EMBEDDING
from load.generate import ClosedLoop, Load
from load.inputs import Inputs
from load.sandbox import run_server

TWO, HALVES = "two processes", "half of its own rate"
CACHED, NOT_CACHED, CACHE_MIB = "cache on", "cache off", 64
STREAM = 60_000  # texts of the cache's stream, more than a benchmark sends
CLIENTS = 16  # of the cache's stream, and of two archives


def measure(bench: Bench) -> Iterator[Row]:
    yield from _measure_processes(bench)
    yield from _measure_archives(bench)
    yield from _measure_cache(bench)


def _measure_processes(bench: Bench) -> Iterator[Row]:
    network = export(bench.work)[0]
    listed = bench.work / "models.yaml"
    entry = {"task": "tensors", "version": "1", "weights": f"{network.name}.onnx"}
    listed.write_text(json.dumps({network.name: entry}), encoding="utf-8")  # JSON is YAML
    with redirect_output():
        Recipe(model(network.name, listed), archive_format="no-archive", export_path=bench.work).build()
    rows, headers = encode(network)
    inputs = {network.name: rows, EMBEDDING: samples.singles(samples.texts()), IMAGES: samples.images()}
    folders = {network.name: bench.work / network.name}
    folders |= {name: archives.build(bench, name, bench.work) for name in (EMBEDDING, IMAGES)}
    with run_server(bench.work, extra=(*CPU_ONLY, QUEUE)) as server:
        for name, each in inputs.items():
            sent = headers if name == network.name else {}
            with ExitStack() as stack:
                contenders: list[Contender] = []
                for title, words in ((TWO, ("--processes", "2")), (ONE, ())):
                    running = stack.enter_context(serve_one(folders[name], each, sent, words=words))
                    wait_for_all(running, 2 if words else 1)
                    contenders.append(Endpoint(title, running.url, each, headers=sent, process=running))
                stock = register(server, name, TORCHSERVE, each, network.graph.batch_size)
                contenders.append(Endpoint(TORCHSERVE, stock.url, each, headers=sent))
                bench.settle(contenders, ClosedLoop(MOST_PEER_CLIENTS))
                loads = [Comparison(ClosedLoop(clients), contenders) for clients in PEER_CLIENTS]
                results = bench.measure(loads)
            for load in loads:
                for other in (ONE, TORCHSERVE):
                    yield results.row(f"{name}, {load}, /s", load, TWO, other)
            yield results.row(f"{name}, {loads[0]}, p50 in ms", loads[0], TWO, ONE, "p50_ms")


def _measure_archives(bench: Bench) -> Iterator[Row]:
    """Measure each archive's rate alone, and at once in one process, with as many clients for each."""
    inputs = {EMBEDDING: samples.singles(samples.texts()), IMAGES: samples.images()}
    folders = [bench.work / name for name in inputs]
    load, alone, both = ClosedLoop(CLIENTS), dict[str, list[float]](), dict[str, list[float]]()
    with ExitStack() as stack:
        own = {}
        for folder, each in zip(folders, inputs.values(), strict=True):
            running = stack.enter_context(serve_one(folder, each))
            own[folder.name] = Endpoint(folder.name, running.url, each, process=running)
        shared = stack.enter_context(serve_one(folders[0], inputs[EMBEDDING], words=(str(folders[1]),)))
        base = shared.url.removesuffix(EMBEDDING)
        endpoints = {name: Endpoint(name, base + name, each) for name, each in inputs.items()}
        bench.settle([*own.values(), *endpoints.values()], load)
        for _ in bench:
            for name, contender in own.items():
                alone.setdefault(name, []).append(contender.run(load, bench.seconds, bench.seconds / 4).per_s / 2)
            with shared.awake():
                found = _run_at_once(bench, list(endpoints.values()), load)
            for name, per_s in found.items():
                both.setdefault(name, []).append(per_s)
    for name in inputs:
        yield Row(f"{name}, {load} and as many of the other, /s", both[name], HALVES, alone[name])


def _run_at_once(bench: Bench, endpoints: Sequence[Endpoint], load: Load) -> dict[str, float]:
    with ThreadPoolExecutor(len(endpoints)) as pool:
        found = pool.map(lambda each: each.run(load, bench.seconds, bench.seconds / 4).per_s, endpoints)
    return dict(zip((each.name for each in endpoints), found, strict=True))


def _measure_cache(bench: Bench) -> Iterator[Row]:
    built, load = bench.work / EMBEDDING, ClosedLoop(CLIENTS)
    sizes = {CACHED: CACHE_MIB, NOT_CACHED: 0}
    names = {title: copy_with(built, f"{EMBEDDING}-{mib}", ADAPTIVE, cache_mib=mib) for title, mib in sizes.items()}
    with ExitStack() as stack:
        contenders: list[Contender] = []
        for title, name in names.items():
            inputs = Stream()
            running = stack.enter_context(serve_one(bench.work / name, inputs))
            contenders.append(Endpoint(title, running.url, inputs, process=running))
        results = bench.measure([Comparison(load, contenders)])
    yield results.row(f"{EMBEDDING}, {load}, half of the texts repeat, /s", load, CACHED, NOT_CACHED)


class Stream(Inputs):
    """Texts that all clients take in turn, each once."""

    def __init__(self) -> None:
        """Make texts of which each second one repeats one before; a number makes each new one differ."""
        chance, texts, new = random.Random(0), samples.texts(), list[str]()
        found = list[str]()
        for number in range(STREAM // 2):
            new.append(f"{number} {texts[number % len(texts)]}")
            # Not the latest, which may be on their way.
            found += [new[-1], new[chance.randrange(max(1, number - 4 * CLIENTS))]]
        super().__init__(samples.singles(found).items)
        object.__setattr__(self, "_turn", cycle(range(STREAM)))

    def order(self, client: int) -> Iterator[int]:  # noqa: ARG002
        return iter(self._turn.__next__, None)  # type: ignore[attr-defined]
