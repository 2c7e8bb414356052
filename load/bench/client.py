"""Measures the client against what needs none: a folder of photographs and `hey`, many texts and the loop in process.

    archives -> one server with ResNet-152 and the embedding model, one process with the loop
    for each round: 48 connections, `torchserve-client predict` over a folder; the loop, ChunkingClient over 10,000
        texts

The clients share the machine's cores with the server: the rows on processor time say what they take of them. All of
`predict` counts, the start of its process and its last, emptier batches included. Three rounds take some
six minutes on two cores.
"""

import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from deploy.archive import Recipe
from deploy.models import ROOT, model
from deploy.sandbox import started
from deploy.server import Server
from load.bench.archives import OURS, Archives
from load.bench.peers import CPU_ONLY, BenchError, Child, ServedModel
from load.bench.peers import TUNING as PEERS
from load.bench.photographs import photographs
from load.bench.progress import aside, progress
from load.bench.rounds import Rounds, Series, measure_in_turn
from load.bench.sentences import texts
from load.bench.table import Bound, Row, ratios, render
from load.bench.texts import EMBEDDING
from load.bench.texts import TUNING as EMBEDDED
from torchserve_client import ChunkingClient, Client


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how much the client is asked for."""

    # Files of the folder: ten times what is in flight, so that the last, emptier batches hardly count.
    photographs: int = 500
    # Texts of one call: 20 s at the 512 texts/s of the README.
    texts: int = 10_000
    # Connections of the peer: three batches, as `predict` keeps in flight.
    connections: int = 48


TUNING = Tuning()

# This deployment is held to these bounds.
OF_CONNECTIONS = Bound(0.95, is_minimum=True)
OF_LOOP = Bound(0.9, is_minimum=True)


@dataclass(frozen=True, slots=True)
class Cost:
    """The speed of one way of asking, and its price.

    Attributes:
        rate_per_s: inputs answered per second.
        cpu_ms: processor time that the client took for an input.
    """

    rate_per_s: float
    cpu_ms: float


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure, and say what came out; arguments and errors are those of load.bench.resnet."""
    rates: Series = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        progress(f"archives: {OURS} and {EMBEDDING}")
        with aside():
            store = Archives.prepare(work).model_store
            Recipe(model(EMBEDDING), export_path=store).build()
        with zipfile.ZipFile(store / f"{EMBEDDING}.mar") as archive:
            archive.extractall(work / "embedding")
        bodies = photographs()
        _fill(work / "photographs", bodies)
        with (
            started(store, extra=CPU_ONLY) as server,
            Child.started("load.bench.in_process_texts", work / "embedding") as loop,
        ):
            resnet = ServedModel(server, OURS, bodies)
            embedding = ServedModel(server, EMBEDDING, [b"{}"], EMBEDDED.batch_size, EMBEDDED.max_batch_delay_ms)
            resnet.register()
            embedding.register()

            def in_process() -> float:
                order = {"way": "sorted", "batch_size": EMBEDDED.batch_size, "duration_s": duration_s}
                return float(loop.ask(order)["throughput_per_s"])

            def rate_of(name: str, cost: Cost) -> float:
                rates[f"{name} cpu"].append(cost.cpu_ms)
                return cost.rate_per_s

            figures: dict[str, Callable[[], float]] = {
                "connections": lambda: _connections(resnet, work / "photographs", duration_s),
                "predict": lambda: rate_of("predict", predict(server, work / "photographs", work / "answers.jsonl")),
                "loop": in_process,
                "chunking": lambda: rate_of("chunking", chunking(server)),
            }
            measure_in_turn(rounds, "client", figures, rates)
    return "\n".join(
        [
            f"`torchserve-client predict` on {TUNING.photographs} photographs, batch_size {PEERS.batch_size}, "
            f"against {peer()};",
            f"{TUNING.texts} texts with ChunkingClient against the loop in process, sorted",
            "",
            render(table(rates), is_markdown=is_markdown),
        ]
    )


def table(rates: Series) -> list[Row]:
    """Make the rows; the peer of the first stands under `stock`, since it is no part of this project."""
    return [
        Row(f"predict, a folder of {TUNING.photographs}, images/s: ours / {peer()}", rates["connections"],
            rates["predict"], [], ratios(rates["predict"], rates["connections"]), bound=OF_CONNECTIONS),
        Row("predict, processor time in ms an image", [], rates["predict cpu"], [], rates["predict cpu"], digits=2),
        Row(f"ChunkingClient, {TUNING.texts} texts, texts/s: ours / in-process", [], rates["chunking"], rates["loop"],
            ratios(rates["chunking"], rates["loop"]), bound=OF_LOOP),
        Row("ChunkingClient, processor time in ms a text", [], rates["chunking cpu"], [], rates["chunking cpu"],
            digits=3),
    ]  # fmt: skip


def peer() -> str:
    """Name what keeps the connections busy: hey where it is installed, or else our own closed loop."""
    return f"hey -c {TUNING.connections}" if shutil.which("hey") else f"closed loop of {TUNING.connections}"


def predict(server: Server, folder: Path, out: Path) -> Cost:
    """Measure `torchserve-client predict` over a folder, from its first instruction to its last.

    Args:
        server: has ResNet-152.
        folder: the photographs.
        out: file of the answers, written anew.

    Raises:
        BenchError: a prediction failed.
    """
    out.unlink(missing_ok=True)
    settings = server.settings
    command = [sys.executable, "-m", "torchserve_client", "--server", settings.inference_url, "--management"]
    command += [settings.management_url, "predict", OURS, str(folder), "--out", str(out)]
    cpu_s, started_s = _children_cpu_s(), time.perf_counter()
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started_s
    if finished.returncode != 0:
        raise BenchError(f"predict exited {finished.returncode}: {finished.stderr.strip() or finished.stdout.strip()}")
    return Cost(TUNING.photographs / seconds, (_children_cpu_s() - cpu_s) * 1e3 / TUNING.photographs)


def chunking(server: Server) -> Cost:
    """Measure ChunkingClient as it is by default, in one call.

    Raises:
        BenchError: a text was not answered.
    """
    inputs = list(islice(cycle(texts()), TUNING.texts))
    settings = server.settings
    with Client(settings.inference_url, settings.management_url) as client, ChunkingClient(client) as chunks:
        cpu_s, started_s = time.process_time(), time.perf_counter()
        answers = chunks.infer_batch(EMBEDDING, inputs)
        seconds = time.perf_counter() - started_s
        cpu_ms = (time.process_time() - cpu_s) * 1e3
    if len(answers) != TUNING.texts or not all(isinstance(answer, list) for answer in answers):
        raise BenchError(f"{EMBEDDING}: not every text was answered")
    return Cost(TUNING.texts / seconds, cpu_ms / TUNING.texts)


def hey_rate_per_s(report: str) -> float:
    """Read the answers of status 200 per second in what hey prints.

    Raises:
        BenchError: it prints none.
    """
    answered = re.search(r"^\s*\[200\]\s+(\d+) responses", report, re.MULTILINE)
    total = re.search(r"^\s*Total:\s+([\d.]+) secs", report, re.MULTILINE)
    if answered is None or total is None:
        raise BenchError(f"hey got no answers: {' '.join(report.split())[:200]}")
    return int(answered[1]) / float(total[1])


def _connections(served: ServedModel, folder: Path, duration_s: float) -> float:
    if shutil.which("hey") is None:
        return served.measure(TUNING.connections, duration_s).throughput_per_s
    photograph = min(folder.iterdir())
    command = ["hey", "-z", f"{duration_s:g}s", "-c", str(TUNING.connections), "-m", "POST", "-T", "image/jpeg"]
    finished = subprocess.run([*command, "-D", str(photograph), served.url], capture_output=True, text=True, check=True)
    return hey_rate_per_s(finished.stdout)


def _fill(folder: Path, bodies: Sequence[bytes]) -> None:
    folder.mkdir()
    for index, body in enumerate(islice(cycle(bodies), TUNING.photographs)):
        (folder / f"{index:03}.jpg").write_bytes(body)


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
