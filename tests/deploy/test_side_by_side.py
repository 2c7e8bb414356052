"""Processes and threads that write files of the same names at the same time: each file is whole, and none is lost."""

import json
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest.mock import Mock

import pytest

from deploy.archives import sources
from deploy.archives.names import lead, place, prune
from deploy.gateway.envoy.files import write_resources
from deploy.hosts.frontend.replica import Metrics
from deploy.hosts.serve.totals import Totals
from deploy.models import ModelEntry
from deploy.nodes.run.node import replace_file
from handlers.metrics import COUNTERS
from load.sandbox import free_ports
from tests.stock_archives import archive

THREADS, TIMES = 4, 50


def run(work: Callable[[int], Any]) -> list[Any]:
    """Call `work` from several threads, each time with another number; return what it returns."""
    with ThreadPoolExecutor(THREADS) as pool:
        return [*pool.map(work, range(THREADS * TIMES))]


@pytest.mark.parametrize(
    "writer",
    [
        lambda path, _: partial(replace_file, path),
        lambda path, _: lambda text: write_resources(path, [{"text": text}]),
        lambda _, totals: lambda _: totals.write(),
    ],
)
def test_file_that_several_replace_is_whole(writer: Callable[..., Callable[[str], object]], tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write = writer(path, Totals({"a": Mock(labels=("M",), samples={(f"{each}",): 1.0 for each in range(500)})}, path))

    def write_and_read(number: int) -> None:
        write(json.dumps([number] * 1000))
        json.loads(path.read_text())

    run(write_and_read)
    assert [*tmp_path.iterdir()] == [path]


def test_names_made_side_by_side_write_into_no_archive(tmp_path: Path) -> None:
    name, made, content = tmp_path / "m.mar", tmp_path / "m-1.0.mar", bytes(1 << 16)

    def replace_and_lead(number: int) -> int:
        new = tmp_path / f"new-{number}"
        new.write_bytes(content)
        place(new, made)
        lead(name, made)
        return len(name.read_bytes())

    assert {*run(replace_and_lead)} == {len(content)}
    assert sorted(path.name for path in tmp_path.iterdir()) == [made.name, name.name]


def test_folders_take_the_place_of_each_other(tmp_path: Path) -> None:
    made = [tmp_path / f"{number}" / "m" for number in range(THREADS * TIMES)]
    for each in made:
        each.mkdir(parents=True)
        (each / "model.pt").touch()
    run(lambda number: place(made[number], tmp_path / "store"))
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["model.pt"]


def test_old_archives_are_removed_by_several_builds(tmp_path: Path) -> None:
    newest = archive(tmp_path / "m.mar", "h.py", {})

    def build(number: int) -> None:
        archive(tmp_path / f"m-{number}.mar", "h.py", {}, modelName="m", modelVersion=f"{number}")
        prune(newest, 1, tmp_path)

    run(build)
    assert len([*tmp_path.glob("m-*.mar")]) <= THREADS


def test_archive_of_a_node_that_starts_just_then_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newest, node, read = archive(tmp_path / "m.mar", "h.py", {}), tmp_path / ".nodes" / "node-1", Path.read_text
    snapshot = node / "logs" / "config" / "1.cfg"
    snapshot.parent.mkdir(parents=True)
    snapshot.write_text('"m-1.mar"')
    for number in range(3):
        archive(tmp_path / f"m-{number}.mar", "h.py", {}, modelName="m", modelVersion=f"{number}")

    def late(path: Path, **options: str) -> str:
        monkeypatch.setattr(Path, "read_text", read)
        snapshot.rename(node / "restore.json")
        return path.read_text(**options)

    monkeypatch.setattr(Path, "read_text", late)
    assert [path.name for path in prune(newest, 1, tmp_path)] == ["m-0.mar"]


def test_distribution_that_two_builds_fetch_is_there_for_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Barrier(2, timeout=30)

    def install(command: list[str], **_: object) -> object:
        target = Path(command[command.index("--target") + 1])
        target.mkdir()
        (target / "weights.bin").touch()
        both.wait()
        return Mock(returncode=0)

    monkeypatch.setattr(sources, "STORE", tmp_path)
    monkeypatch.setattr(subprocess, "run", install)
    fetch = partial(sources.fetch, ModelEntry("m", "tensors", "1", tmp_path))
    with ThreadPoolExecutor(2) as pool:
        folders = {*pool.map(fetch, repeat("d==1", 2))}
    assert [[each.name for each in folder.iterdir()] for folder in folders] == [["weights.bin"]]


def test_programs_with_other_temporary_folders_get_other_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = []
    for number in range(2):
        (tmp_path / f"{number}").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / f"{number}"))
        ports += free_ports(2)
    assert len({*ports}) == 4


def test_counter_that_models_of_a_process_make_at_once_is_one() -> None:
    inner = list[object]()

    def make(name: str, _: object) -> object:
        if not inner:  # another model's thread is faster
            inner.append(None)
            inner.append(metrics.get_metric(name, None))
        return object()

    metrics = Metrics(make)
    assert metrics.get_metric(COUNTERS[0].name, None) is inner[1]
