import os
from pathlib import Path

import pytest

from deploy.nodes.record import Record, Registration, registrations

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


def made(model: str, version: str = "1.0", batch_size: int = 8) -> Registration:
    return Registration(
        model=model, version=version, archive=f"{model}.mar", batch_size=batch_size, max_batch_delay_ms=5,
        min_workers=1, max_workers=1, is_default=True, response_timeout_s=120, startup_timeout_s=120,
    )  # fmt: skip


def snapshot(*registered: Registration) -> str:
    models = ",".join(
        f'"{each.model}": {{"{each.version}": {{"defaultVersion": true, "marName": "{each.archive}", "minWorkers": 1, '
        f'"maxWorkers": 1, "batchSize": {each.batch_size}, "maxBatchDelay": 5}}}}'
        for each in registered
    )
    return f'model_snapshot={{"models": {{{models}}}}}\n'


class Node:
    """The folders of a node, and a TorchServe that writes snapshots."""

    def __init__(self, folder: Path) -> None:
        self.record = Record(folder / "node-1", folder / "logs")
        self.snapshots = folder / "logs" / "config"
        self.snapshots.mkdir(parents=True)
        self._written = 0

    def serves(self, *registered: Registration, text: str | None = None) -> None:
        self._written += 1
        # Names are local time, which goes back in autumn: what was written last counts.
        path = self.snapshots / f"{9 - self._written}-snapshot.cfg"
        path.write_text(snapshot(*registered) if text is None else text)
        os.utime(path, ns=(self._written, self._written))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_snapshot_is_read_as_torchserve_writes_it() -> None:
    found = registrations(SNAPSHOT)
    assert found == [
        Registration(
            model="m\u00e4use", version="1.0", archive="a b.mar", batch_size=5, max_batch_delay_ms=7, min_workers=1,
            max_workers=4, is_default=False, response_timeout_s=60, startup_timeout_s=90,
        ),
        Registration(
            model="m\u00e4use", version="2.0", archive="b.mar", batch_size=1, max_batch_delay_ms=1, min_workers=0,
            max_workers=0, is_default=True, response_timeout_s=120, startup_timeout_s=120,
        ),
    ]  # fmt: skip


def test_snapshot_that_is_cut_off_is_none_wherever_it_is_cut() -> None:
    end = SNAPSHOT.index("version=0.12.0") - 1
    assert {registrations(SNAPSHOT[:length]) is None for length in range(0, end)} == {True}


def test_first_start_restores_nothing_whatever_lies_about(node: Node) -> None:
    node.serves(made("stale"))
    assert not node.record.exists()
    assert node.record.keep() == []
    assert not list(node.snapshots.iterdir())
    assert node.record.exists()


def test_what_was_served_last_is_restored_and_what_was_unregistered_is_not(node: Node) -> None:
    node.record.keep()
    node.record.done()
    node.serves(made("a"), made("b"))
    node.serves(made("b", batch_size=2))
    assert node.record.keep() == [made("b", batch_size=2)]


def test_snapshot_that_was_being_written_as_the_server_died_gives_way_to_the_one_before(node: Node) -> None:
    node.record.keep()
    node.record.done()
    node.serves(made("a"))
    node.serves(text="")
    assert node.record.keep() == [made("a")]


def test_death_in_the_middle_of_a_restoration_loses_nothing(node: Node) -> None:
    node.record.keep()
    node.record.done()
    node.serves(made("a"), made("b"))
    node.record.keep()
    # TorchServe is back and has one of them, and somebody registers a third; then it dies again.
    node.serves()
    node.serves(made("a"), made("c"))
    assert {each.model for each in node.record.keep()} == {"a", "b", "c"}
    assert not node.record.is_done()
    node.record.done()
    node.serves(made("a"))
    assert node.record.read() == [made("a")]


def test_node_that_is_stopped_for_good_forgets(node: Node) -> None:
    node.record.keep()
    node.serves(made("a"))
    node.record.forget()
    assert not node.record.exists()
    assert node.record.keep() == []
