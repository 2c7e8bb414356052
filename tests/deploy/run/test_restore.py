"""The record of a node's models: TorchServe's snapshots, kept until all are restored; see e2e/test_nodes.py."""

import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.run.machine import LocalNode
from deploy.run.restore import Record, Registration, parse_snapshot, restore

# As TorchServe 0.12.0 writes it (java.util.Properties), shortened by settings that say nothing of models.
SNAPSHOT = r"""#Saving snapshot
#Sun Nov 22 05\:57\:27 UTC 2026
inference_address=http\://127.0.0.1\:8080
model_snapshot={\n  "name"\: "20261122055727143-snapshot.cfg",\n  "modelCount"\: 2,\n  "created"\: 1795327047143,\n  \
  "models"\: {\n "m\u00e4use"\: {\n "1.0"\: {\n "defaultVersion"\: false,\n "marName"\: "a b.mar",\n \
  "minWorkers"\: 1,\n        "maxWorkers"\: 4,\n        "batchSize"\: 5,\n        "maxBatchDelay"\: 7,\n  \
  "responseTimeout"\: 60,\n        "startupTimeout"\: 90,\n        "runtimeType"\: "python"\n      },\n  \
  "2.0"\: {\n "defaultVersion"\: true,\n "marName"\: "b.mar",\n "minWorkers"\: 0,\n "maxWorkers"\: 0,\n \
  "batchSize"\: 1,\n "maxBatchDelay"\: 1,\n "responseTimeout"\: 120\n      }\n    }\n  }\n}
version=0.12.0
"""
MADE = Registration(
    model="m\u00e4use", version="1.0", archive="a b.mar", batch_size=5, max_batch_delay_ms=7, min_workers=1,
    max_workers=4, is_default=False, response_timeout_s=60, startup_timeout_s=90,
)  # fmt: skip
# The name of each field in a snapshot.
STATE = {
    "defaultVersion": "is_default", "marName": "archive", "minWorkers": "min_workers", "maxWorkers": "max_workers",
    "batchSize": "batch_size", "maxBatchDelay": "max_batch_delay_ms", "responseTimeout": "response_timeout_s",
    "startupTimeout": "startup_timeout_s",
}  # fmt: skip


def made(model: str, **more: Any) -> Registration:
    return replace(MADE, model=model, archive=f"{model}.mar", **more)


class Node:
    def __init__(self, folder: Path) -> None:
        local: Any = SimpleNamespace(folder=folder / "node-1", server=SimpleNamespace(logs=folder / "logs"))
        self.record, self.folder = Record(local), folder / "node-1"
        self.snapshots = folder / "logs" / "config"
        self.snapshots.mkdir(parents=True)
        self._written = 0

    def serves(self, *registered: Registration, text: str | None = None) -> None:
        self._written += 1
        states = [{name: getattr(each, field) for name, field in STATE.items()} for each in registered]
        models = {each.model: {each.version: state} for each, state in zip(registered, states, strict=True)}
        # Names contain local time, which is set back in autumn: the last write counts.
        path = self.snapshots / f"{9 - self._written}-snapshot.cfg"
        path.write_text(f"model_snapshot={json.dumps({'models': models})}\n" if text is None else text)
        os.utime(path, ns=(self._written, self._written))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node that was started, and serves nothing yet."""
    made = Node(tmp_path)
    # The first start restores nothing, even if there are snapshots.
    made.serves(MADE)
    assert not made.record.exists()
    assert made.record.begin() == []
    assert not list(made.snapshots.iterdir())
    made.record.finish()
    return made


def test_snapshot_is_read_as_torchserve_writes_it_and_cut_off_it_is_none() -> None:
    assert parse_snapshot(SNAPSHOT) == [
        MADE,
        replace(
            MADE, version="2.0", archive="b.mar", batch_size=1, max_batch_delay_ms=1, min_workers=0, max_workers=0,
            is_default=True, response_timeout_s=120, startup_timeout_s=120,
        ),
    ]  # fmt: skip
    end = SNAPSHOT.index("version=0.12.0") - 1
    assert {parse_snapshot(SNAPSHOT[:length]) is None for length in range(end)} == {True}


def test_what_was_served_last_is_restored_and_what_was_unregistered_is_not(node: Node) -> None:
    node.serves(made("a"), made("b"))
    node.serves(made("b", batch_size=2))
    # Cut off, as the server died while it wrote.
    node.serves(text="")
    assert node.record.begin() == [made("b", batch_size=2)]


def test_power_cut_that_empties_the_snapshots_restores_the_older_record_and_marks_that_versions_are_unknown(
    node: Node,
) -> None:
    node.serves(made("a"))
    assert (node.record.begin(), node.record.is_damaged) == ([made("a")], False)
    node.record.finish()
    node.serves(made("a"), made("b"))
    node.serves(text="")
    node.serves(text="")
    assert (node.record.begin(), node.record.is_damaged) == ([made("a"), made("b")], True)
    node.record.finish()
    node.serves(text="")
    assert node.record.begin() == [made("a"), made("b")]
    # The gateway takes null for an unknown version, and answers 503 for a version that it had and does not find.
    node.record.finish([made("b")])
    assert [each and each["model"] for each in json.loads((node.folder / "restore.json").read_text())] == ["b", None]
    assert node.record.read_pending() == [made("b")]


def test_death_in_the_middle_of_a_restoration_loses_nothing(node: Node) -> None:
    node.serves(made("a"), made("b"))
    node.record.begin()
    # TorchServe restarts and has one of them, a third is registered, and it dies again.
    node.serves()
    node.serves(made("a", min_workers=0), made("c"))
    assert node.record.begin() == [made("a"), made("b"), made("c")]
    assert len(node.record.read_pending()) == 3
    node.record.finish()
    node.serves(made("a"))
    assert node.record.read() == [made("a")]
    # A version whose archive is another one now is tried again at the next start.
    node.record.finish([made("b")])
    assert node.record.read_pending() == [made("b")]
    assert node.record.begin() == [made("b"), made("a")]
    # Stopped for good, it forgets.
    node.record.remove()
    assert not node.record.exists()
    assert node.record.begin() == []


def test_archive_that_was_built_after_its_version_was_registered_is_not_restored(node: Node, tmp_path: Path) -> None:
    def restored(built_ns: int) -> str:
        with zipfile.ZipFile(tmp_path / "a.mar", "w") as archive:
            archive.writestr("MAR-INF/MANIFEST.json", '{"model": {"modelName": "a", "modelVersion": "1.0"}}')
            archive.writestr("build.json", json.dumps({"made_s": built_ns / 1e9}))
        ((line, is_registered),) = restore(LocalNode("node-1", tmp_path, server), [again])
        assert is_registered is (": restored, " in line)
        return line

    described = {"minWorkers": 0, "maxWorkers": 0, "modelVersion": "1.0"}
    calls = {"versions": lambda *_, **_more: [], "register": lambda *_, **_more: None, "describe": lambda *_: described}
    management = SimpleNamespace(**calls)
    settings = SimpleNamespace(model_store="")
    server: Any = SimpleNamespace(directory=tmp_path, settings=settings, management=management, logs=tmp_path)
    served = made("a", min_workers=0, max_workers=0)
    # The second to the fifth nanosecond: registered, unregistered, registered again, beside another one.
    for versions in ((served,), (), (served,), (served, made("b"))):
        node.serves(*versions)
    node.record.finish([node.record.begin()[0]])
    # A later start tries it again.
    (again,) = node.record.begin()
    assert restored(5).startswith(
        "node-1: a 1.0 is not restored: a.mar was built after version 1.0 was registered: raise"
    )
    assert restored(3).startswith("node-1: a 1.0: restored, ")
