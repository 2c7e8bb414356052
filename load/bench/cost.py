"""Measures what a request costs its worker, by part: the processor time of a real worker under real load.

    archives as folders -> a copy of each with load.bench.hook_clock in it -> one server
    for each round, each model and mode, 64 clients and 1: the archive as it is -> microseconds a request, the whole
                                                          its copy              -> the same by part

The whole is the control: the time of the worker's process, of an archive without any clock. What a clock takes itself
is taken out of the parts. What then is missing is `unexplained`: negative where the parts are more than the whole,
since they were measured a moment later, with other batches. `rest` is what Python's threads do outside the steps:
TorchServe's own loop with its log and sendall, waking each other, waiting. All of it is processor time, which a busy
machine changes by its caches alone, so nothing waits for the machine to be idle.
"""

import json
import os
import shutil
import socket
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from deploy.archive import Recipe, cache_of
from deploy.models import Model, model
from deploy.sandbox import started
from deploy.server import Server
from deploy.sources import WeightsUnavailable
from handlers.vision.images import grey_jpeg
from load.bench import hook_clock, networks
from load.bench.hook_clock import HOOKS, NATIVE, REPORTER
from load.bench.identity import Body, Load, cost_us, under_load
from load.bench.machine import Processor, versions
from load.bench.peers import CPU_ONLY
from load.bench.progress import aside, progress
from load.bench.rounds import Rounds
from load.bench.table import render_cells
from load.bench.tensor_server import npy

CLASSIC, ADAPTIVE = "classic", "adaptive"
MODES = (CLASSIC, ADAPTIVE)
# What is no step: the rest of Python's threads, and what neither steps nor threads account for.
REST, UNEXPLAINED = "rest", "unexplained"
PARTS = (*HOOKS, REST, UNEXPLAINED)
TIMED = "-timed"


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how the workers are asked."""

    # Clients: as many as fill every batch, and one alone.
    clients: tuple[int, ...] = (64, 1)
    # Requests of a batch, which are those that an adaptive worker chooses from; and ms that a batch waits: the least.
    window: int = 64
    max_batch_delay_ms: int = 1
    # Longest measurement, s: processor time is counted in hundredths of a second.
    most_s: float = 3.0
    # Pixels of a side of the image: small, so that its decoding does not hide all else.
    side: int = 224


TUNING = Tuning()
# Sixteen words that MiniLM's tokenizer has whole.
TEXT = "the first day of school is over and the children go home to their mother"


@dataclass(frozen=True, slots=True)
class Case:
    """One model.

    Attributes:
        name: in the table.
        entry: of a list of models, without its name.
        settings: its handler's.
        body: what is sent.
        batch_size: most requests of a batch in classic mode.
    """

    name: str
    entry: Mapping[str, Any]
    settings: Mapping[str, Any]
    body: Body
    batch_size: int = TUNING.window


def cases(work: Path) -> list[Case]:
    """Make the models: a small image, a short text, and a tensor of the size of MNIST's.

    Args:
        work: where the network of tensors is written.
    """
    text = Body("text", json.dumps({"text": TEXT}).encode(), "application/json", {})
    network = networks.small(work / f"{networks.SMALL}.onnx")
    row = npy(network.rows(1))
    tensor = {"handler": "tensors", "version": "1", "weights": str(network.path)}
    return [
        listed("mobilenet-v2", Body("JPEG", grey_jpeg(TUNING.side), "image/jpeg", {})),
        listed("sentence-embedding", text),
        listed("language-id", text),
        Case("tensors", tensor, {}, Body(".npy", row, "application/x-npy", {"Accept": "application/x-npy"})),
    ]


def listed(name: str, body: Body) -> Case:
    """Take a model of examples/models.yaml."""
    found: Model = model(name)
    entry = {"handler": found.handler, "version": found.version, "weights": found.weights}
    return Case(name, entry, found.config().get("handler") or {}, body)


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure, and say what came out; arguments and errors are those of load.bench.resnet."""
    duration_s = min(duration_s, TUNING.most_s)
    measured: Measured = defaultdict(lambda: defaultdict(list))
    made = 0
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        wanted = cases(work)
        build(wanted, work)
        with started(work / "model_store", extra=CPU_ONLY) as server:
            for each in rounds:
                made += 1
                for case in wanted:
                    for mode in MODES:
                        with registered(server, case, mode):
                            for clients in TUNING.clients:
                                values = measure(server, case, mode, Load(clients, duration_s), work)
                                key = (case.name, mode, clients)
                                progress(f"{each}, {name_of(*key)}: {sum(values.values()):.0f} us a request")
                                for part, us in values.items():
                                    measured[key][part].append(us)
    return "\n".join(
        [
            f"What a request costs its worker, microseconds of processor time, on {Processor.here()}; "
            f"{versions('openvino', 'torchserve')}; JPEG of {TUNING.side} x {TUNING.side}, text of {len(TEXT.split())} "
            f"words, tensor of 1x28x28; batches of up to {TUNING.window}; medians of {made} interleaved rounds of "
            f"{duration_s:g} s, of the whole (min..max)",
            "",
            render_cells(*table(measured), is_markdown=is_markdown),
        ]
    )


# (model, mode, clients) -> part -> microseconds, a value a round
Measured = dict[tuple[str, str, int], dict[str, list[float]]]


def build(wanted: Sequence[Case], work: Path) -> None:
    """Build every model in both modes, and a copy of each with a clock in it.

    Args:
        wanted: the models.
        work: gets a folder `model_store`; the clocks' sockets will be here.

    Raises:
        ArchiverFailed: one could not be built.
    """
    store = work / "model_store"
    store.mkdir()
    entries = {}
    for case in wanted:
        for mode in MODES:
            name = registered_name(case, mode)
            folder = work / name
            folder.mkdir()
            (folder / "model-config.yaml").write_text(yaml.safe_dump(config_of(case, mode)), encoding="utf-8")
            entries[name] = dict(case.entry)
    models = work / "models.yaml"
    models.write_text(yaml.safe_dump(entries), encoding="utf-8")
    progress(f"archives: {', '.join(entries)}")
    for name in entries:
        recipe = Recipe(
            model(name, models),
            archive_format="no-archive",
            export_path=store,
            cache_path=cache_of(os.environ) or work / "exports",
        )
        with aside():
            try:
                built = recipe.build()
            except WeightsUnavailable:  # random ones take as long to multiply
                built = replace(recipe, weights="random").build()
        with_clock(built.path, work / f"{name}.sock")


def config_of(case: Case, mode: str) -> dict[str, Any]:
    """Write the model-config.yaml of a model in one mode, in adaptive mode without a target."""
    config: dict[str, Any] = {
        "batchSize": TUNING.window,
        "maxBatchDelay": TUNING.max_batch_delay_ms,
        "minWorkers": 1,
        "maxWorkers": 1,
        "responseTimeout": 60,
        "startupTimeout": 120,
        "handler": dict(case.settings),
    }
    if mode == ADAPTIVE:
        config |= {"continuousBatching": True}
        limits = {"max_batch_items": case.batch_size, "queue_timeout_ms": 60_000}
        config["handler"]["scheduling"] = {"mode": ADAPTIVE, "max_latency_ms": None, **limits}
    return config


def with_clock(archive: Path, path: Path) -> None:
    """Copy an archive that is a folder, and have the copy's worker answer on a socket; it is beside, NAME-timed."""
    copy = archive.with_name(archive.name + TIMED)
    shutil.copytree(archive, copy)
    manifest_path = copy / "MAR-INF" / "MANIFEST.json"
    manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
    manifest["model"]["modelName"] = copy.name
    manifest_path.write_text(json.dumps(manifest), encoding="utf-8")
    task = copy / manifest["model"]["handler"]
    shutil.copyfile(Path(hook_clock.__file__), copy / "hook_clock.py")
    # TorchServe looks for the one class that is the module's own; this runs before it makes an object of it.
    ending = f"""
import hook_clock
hook_clock.install(__name__, {str(path)!r})
"""
    task.write_text(task.read_text(encoding="utf-8") + ending, encoding="utf-8")


def registered_name(case: Case, mode: str) -> str:
    """Name a model as the server has it."""
    return f"{case.name}-{mode}"


@contextmanager
def registered(server: Server, case: Case, mode: str) -> Iterator[None]:
    """Register a model in one mode, as it is and with a clock, and take both away again."""
    name = registered_name(case, mode)
    both = (name, name + TIMED)
    for each in both:
        size = case.batch_size if mode == CLASSIC else TUNING.window
        server.register(each, each, batch_size=size, max_batch_delay_ms=TUNING.max_batch_delay_ms, workers=1)
    try:
        yield
    finally:
        for each in both:
            server.management.unregister(each)


def measure(server: Server, case: Case, mode: str, load: Load, work: Path) -> dict[str, float]:
    """Measure one figure once: microseconds a request by part, which add up to the whole."""
    name = registered_name(case, mode)
    whole_us = cost_us(server, name, case.body, load.clients, load.duration_s)
    path = work / f"{name}.sock"
    before, after, requests = under_load(server, name + TIMED, case.body, load, lambda: told(path))
    return parts(before, after, requests, whole_us)


def told(path: Path) -> dict[str, Any]:
    """Ask the clock of a worker what it has measured so far."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        words = b""
        while more := connection.recv(65536):
            words += more
    answer: dict[str, Any] = json.loads(words)
    return answer


def parts(before: Mapping[str, Any], after: Mapping[str, Any], requests: int, whole_us: float) -> dict[str, float]:
    """Take what a worker's clock said apart.

    Args:
        before, after: `HookClock.told`.
        requests: how many were answered between.
        whole_us: the whole of another worker, without a clock.

    Returns:
        Microseconds a request by part, without what the clock took; their sum is `whole_us`.
    """
    inside_s, around_s = after["inside_s"], after["around_s"]
    threads_s = {kind: each - before["threads"].get(kind, 0.0) for kind, each in after["threads"].items()}
    seconds = dict.fromkeys(HOOKS, 0.0)
    raw_s = 0.0
    for step, (own_s, calls, inner) in after["steps"].items():
        own_before_s, calls_before, inner_before = before["steps"].get(step, (0.0, 0, 0))
        raw_s += own_s - own_before_s
        clock_s = (calls - calls_before) * inside_s + (inner - inner_before) * around_s
        seconds[step] += own_s - own_before_s - clock_s
    python_s = sum(each for kind, each in threads_s.items() if kind not in (NATIVE, REPORTER))
    seconds[REST] = python_s - raw_s - (after["top"] - before["top"]) * around_s
    # The engine's own threads, and the thread that sends what was counted.
    seconds["engine"] += threads_s.get(NATIVE, 0.0)
    seconds["metrics"] += threads_s.get(REPORTER, 0.0)
    us = {part: 1e6 * each / requests for part, each in seconds.items()}
    us[UNEXPLAINED] = whole_us - sum(us.values())
    return us


def name_of(name: str, mode: str, clients: int) -> str:
    """Name a figure."""
    return f"{name}, {mode}, {clients} client{'s' if clients > 1 else ''}"


def table(measured: Measured) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Make the columns and the rows: a row for each model, mode and number of clients, a column for each part."""
    rows = []
    for key, values in measured.items():
        wholes = [sum(each) for each in zip(*values.values(), strict=True)]
        whole = f"{median(wholes):.0f} ({min(wholes):.0f}..{max(wholes):.0f})"
        rows.append((name_of(*key), whole, *(f"{median(values[part]):.1f}" for part in PARTS)))
    return ("us of the worker a request", "whole", *PARTS), rows
