"""Measures the seconds from registration to READY of every example that can be built here, first and again.

    archives, folders -> one server with an empty CACHE_DIR
    for each round, each example: registered -> READY -> unregistered, with an empty cache, then with what it remembers
        -> the worker's own line: seconds of its imports, of its files' sums, of load, of trial and warm-up

What cannot be fetched here is built of random weights, which take as long to load, where its task has such; others are
left out and named. An archive is a folder here: a file of half a gigabyte takes TorchServe another second to unpack.
"""

import os
import re
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.archive import ArchiverFailed, Recipe
from deploy.models import Model, models
from deploy.sandbox import started
from deploy.server import Server
from deploy.sources import WeightsUnavailable
from handlers.errors import InvalidConfig
from load.bench.machine import wait_idle
from load.bench.peers import CPU_ONLY
from load.bench.progress import aside, progress
from load.bench.rounds import Rounds
from load.bench.table import render_cells, spread

COLUMNS = ("example", "first, s", "again, s", "imports", "files", "load", "description", "warm-up", "cold warm-up")
# The worker's line, which its handler writes once it is loaded, and a part of it.
LOADED = re.compile(r"Loaded (?P<name>\S+): .*\(seconds: (?P<parts>[^)]*)\)")
PARTS = ("imports", "files", "load", "description", "trial and warm-up")
# Seconds that a worker may take, and between two looks whether it has.
LONGEST_S, POLL_S = 120.0, 0.02
FIRST, AGAIN = "first", "again"


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:  # noqa: ARG001
    """Measure, and say what came out; arguments and errors are those of load.bench.resnet."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as work:
        store, cache = Path(work) / "model_store", Path(work) / "cache"
        progress("archives: every example")
        with aside():
            names = [entry.name for entry in models().values() if _is_built(entry, store)]
        measured: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
        with _cache_dir(cache), started(store, extra=CPU_ONLY) as server:
            for each in rounds:
                for name in names:
                    shutil.rmtree(cache, ignore_errors=True)
                    for which in (FIRST, AGAIN):
                        wait_idle()
                        measured[name, which].append(start(server, name))
                        progress(f"{each}, {name}, {which}: {measured[name, which][-1]}")
    rows = [_cells(name, measured[name, FIRST], measured[name, AGAIN]) for name in names]
    return "\n".join(
        [
            "Seconds from registration to READY: median (least..most). The parts are the worker's of a later start, "
            "the last one is trial and warm-up of a first start; the rest is TorchServe's.",
            "",
            render_cells(COLUMNS, rows, is_markdown=is_markdown),
        ]
    )


def _is_built(entry: Model, store: Path) -> bool:
    """Build a folder in the model store, of published weights or, where they cannot be had, of random ones."""
    for weights in (None, "random"):
        try:
            Recipe(entry, weights, archive_format="no-archive", export_path=store).build()
        except (WeightsUnavailable, InvalidConfig, ArchiverFailed) as error:
            progress(f"{entry.name}: {error}")
        else:
            return True
    return False


@contextmanager
def _cache_dir(folder: Path) -> Iterator[None]:
    """Have servers started meanwhile keep what their workers measure in a folder."""
    before = os.environ.get("CACHE_DIR")
    os.environ["CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["CACHE_DIR"]
        else:
            os.environ["CACHE_DIR"] = before


def start(server: Server, name: str) -> dict[str, float]:
    """Register a model, wait until it is READY, and unregister it.

    Returns:
        Seconds: `ready`, and each of PARTS.
    """
    log = server.logs / "model_log.log"
    read = log.stat().st_size if log.is_file() else 0
    started_s = time.perf_counter()
    server.management.register(name, initial_workers=1)
    while not server.management.is_ready(name):
        if time.perf_counter() > started_s + LONGEST_S:
            raise TimeoutError(f"{name} is not READY after {LONGEST_S:g} s; see {log}")
        time.sleep(POLL_S)
    ready_s = time.perf_counter() - started_s
    server.management.unregister(name)
    return {"ready": round(ready_s, 2), **parts(log.read_bytes()[read:].decode(errors="replace"), name)}


def parts(log: str, name: str) -> dict[str, float]:
    """Read a worker's own seconds out of its log; nothing where it has not written them."""
    found = [line["parts"] for line in LOADED.finditer(log) if line["name"] == name]
    pairs = (part.rpartition(" ") for part in found[-1].split(", ")) if found else ()
    return {part: float(seconds) for part, _, seconds in pairs}


def _cells(name: str, first: list[dict[str, float]], again: list[dict[str, float]]) -> tuple[str, ...]:
    def cell(starts: list[dict[str, float]], what: str) -> str:
        return spread([each[what] for each in starts if what in each], 2)

    warm = PARTS[-1]
    return (name, cell(first, "ready"), cell(again, "ready"), *(cell(again, part) for part in PARTS), cell(first, warm))
