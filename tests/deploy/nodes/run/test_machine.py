"""The nodes of one machine: their folders, ports, shares and units, and the record of a node's models."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from configparser import ConfigParser
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from deploy.gateway.settings import GatewaySettings
from deploy.hosts.serve.limits import HostLimits
from deploy.hosts.serve.process import LATE_S
from deploy.models import ROOT
from deploy.nodes.run import ServerError
from deploy.nodes.run.java import STOP_TIMEOUT_S, has_ended
from deploy.nodes.run.lifecycle import watch_node
from deploy.nodes.run.machine import (
    Layout,
    LocalNode,
    all_nodes,
    find_gpus,
    local_nodes,
    reachable_nodes,
    split_machine,
)
from deploy.nodes.run.node import Node, read_nodes, write_nodes
from deploy.nodes.run.properties import ServerSettings, parse
from deploy.nodes.run.restore import Record, Registration, parse_snapshot, restore
from deploy.nodes.run.server import Share
from tests.tables import table
from tests.waiting import until
from torchserve_batching import __main__ as command

APIS = ("inference", "management", "metrics")
UNITS = ROOT / "deploy" / "nodes" / "run" / "systemd"
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


def layout(tmp_path: Path, nodes: int, name: str = "config.properties", **replaced: str) -> Layout:
    text = (ROOT / name).read_text()
    for key, value in replaced.items():
        text = re.sub(f"(?m)^{key}=.*", f"{key}={value}", text)
    (tmp_path / "own.properties").write_text(text)
    return Layout(tmp_path / "own.properties", nodes)


def test_one_node_is_the_repositorys_own_server(tmp_path: Path) -> None:
    (only,) = local_nodes(Layout(ROOT / "config.properties", 1), tmp_path)
    assert (only.name, only.is_single, only.title, only.server.logs) == ("node-1", True, "TorchServe", ROOT / "logs")
    urls = {api: f"http://127.0.0.1:808{port}" for port, api in enumerate(APIS)}
    restore_file = str(tmp_path / "node-1" / "restore.json")
    assert reachable_nodes([only]) == [Node(name="node-1", **urls, restore_file=restore_file)]
    assert not list(tmp_path.iterdir())
    # A server on every interface is called on loopback; a server that the gateway cannot reach is not a node.
    wide = {f"{api}_address": urls[api].replace("127.0.0.1", "0.0.0.0") for api in APIS}  # noqa: S104
    (found,) = reachable_nodes(local_nodes(layout(tmp_path, 1, **wide), tmp_path))
    assert {api: getattr(found, api) for api in APIS} == urls
    assert reachable_nodes(local_nodes(layout(tmp_path, 1, inference_address="https://127.0.0.1:8443"), tmp_path)) == []


def test_several_have_ports_folders_and_keys_of_their_own_and_one_model_store(tmp_path: Path) -> None:
    place = tmp_path / "n"
    nodes = local_nodes(layout(tmp_path, 3, "config.production.properties"), place, ROOT)
    assert [node.title for node in nodes] == ["node-1", "node-2", "node-3"]
    ports = [sorted(port for _, port in node.server.settings.ports.values()) for node in nodes]
    assert ports == [[7070, 7071, 8080, 8081, 8082], [7170, 7171, 8180, 8181, 8182], [7270, 7271, 8280, 8281, 8282]]
    assert {node.server.settings.model_store for node in nodes} == {str(ROOT / "model_store")}
    for folders in zip(*((node.server.logs, node.server.temporary, node.server.keys) for node in nodes), strict=True):
        assert len(set(folders)) == 3
    keys = [str((place / name / "key_file.json").resolve()) for name in ("node-1", "node-2", "node-3")]
    assert [node.token_file for node in reachable_nodes(nodes)] == keys
    # The shared settings stay: models and limits.
    first, last = (parse(node.server.config.read_text()) for node in (nodes[0], nodes[2]))
    differing = {*(f"{api}_address" for api in APIS), "grpc_inference_port", "grpc_management_port"}
    assert {key for key in first if first[key] != last[key]} == differing
    assert nodes[2].server.settings.models == ServerSettings.read(ROOT / "config.production.properties").models
    assert f"-Dlog4j2.configurationFile={ROOT}/deploy/log4j2.xml" in last["vmargs"]
    own = layout(tmp_path, 3)
    own.write(place)
    assert (Layout.read(place), Layout.read(tmp_path)) == (own, None)
    # Found again by their folders, and read by the gateway as they were written.
    found = [(each.name, each.server.settings) for each in all_nodes(own.config, place)[1:]]
    assert found == [(each.name, each.server.settings) for each in nodes]
    write_nodes(reachable_nodes(nodes), place / "nodes.json")
    assert read_nodes(place / "nodes.json") == reachable_nodes(nodes)


@table(
    ("n", {"inference_address": "https://127.0.0.1:8443"}, r"inference .*must be http://HOST:PORT"),
    ("n", {"metrics_address": "http://127.0.0.1:65500"}, "metrics_address: 65500 and 1 times 100 are beyond 65535"),
    ("x" * 100, {}, "too long a path for the workers' sockets; 108 bytes at most"),
)
def test_nodes_without_room_are_rejected(folder: str, replaced: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=words):
        reachable_nodes(local_nodes(layout(tmp_path, 2, **replaced), tmp_path / folder))


def test_each_node_has_cores_and_a_gpu_of_its_own_while_there_are_some() -> None:
    # Only some of the machine's cores may be used.
    for cores, expected in (([2, 5, 7], [(2,), (5,), (7,)]), ([0, 1], [(0,), (1,), (0,)])):
        assert [share.cores for share in split_machine(cores, [], 3)] == expected
        assert split_machine(cores, ["0", "1"], 1) == [Share()]
    assert [share.gpu for share in split_machine(range(8), ["0", "3"], 3)] == ["0", "3", "0"]
    assert [find_gpus({"CUDA_VISIBLE_DEVICES": each}) for each in ("1,3", "", "-1")] == [["1", "3"], [], []]


@table(
    ("torchserve@.service", GatewaySettings().limits.response_s + STOP_TIMEOUT_S),
    ("torchserve-gateway.service", GatewaySettings().limits.response_s + STOP_TIMEOUT_S),
    ("torchserve-host@.service", HostLimits().drain_s + LATE_S),
)
def test_unit_runs_and_has_time_to_end(name: str, ends_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNITS / name)
    service = unit["Service"]
    assert (service["Restart"], service["KillMode"]) == ("always", "mixed")
    assert float(service["TimeoutStopSec"]) > ends_s
    values = {"${CONFIG}": "production", "${NODES}": "4", "${PORT}": "8080", "%i": "node-2"}
    program, *words = service["ExecStart"].split()
    assert program.endswith("/bin/torchserve-batching")
    monkeypatch.setenv("TORCHSERVE_BATCHING_DIR", str(ROOT))
    with pytest.raises(SystemExit, match="0"):
        command.main([*(values.get(word, word) for word in words), "--help"])


def made(model: str, **more: Any) -> Registration:
    return replace(MADE, model=model, archive=f"{model}.mar", **more)


class Remembered:
    def __init__(self, folder: Path) -> None:
        places = {"logs": folder / "logs", "directory": folder, "temporary": folder / "tmp"}
        dead = {"pid": lambda: None, "describe_death": lambda: "dead"}
        clean_up = partial(shutil.rmtree, folder / "tmp")
        server: Any = SimpleNamespace(**places, **dead, clean_up=clean_up, settings=SimpleNamespace(model_store=""))
        self.local = LocalNode("node-1", folder / "node-1", server)
        self.record, self.folder = Record(self.local), folder / "node-1"
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
def node(tmp_path: Path) -> Remembered:
    made = Remembered(tmp_path)
    # The first start restores nothing, even if there are snapshots.
    made.serves(MADE)
    assert (made.record.exists(), made.record.begin(), [*made.snapshots.iterdir()]) == (False, [], [])
    made.record.finish()
    return made


def test_what_was_served_last_is_restored_from_a_whole_snapshot(node: Remembered) -> None:
    node.serves(made("a"), made("b"))
    node.serves(made("b", batch_size=2))
    # Cut off, as the server died while it wrote.
    node.serves(text="")
    assert node.record.begin() == [made("b", batch_size=2)]
    times: Any = {"max_batch_delay_ms": 1, "response_timeout_s": 120, "startup_timeout_s": 120}
    second = {**times, "archive": "b.mar", "batch_size": 1, "min_workers": 0, "max_workers": 0, "is_default": True}
    assert parse_snapshot(SNAPSHOT) == [MADE, replace(MADE, version="2.0", **second)]
    end = SNAPSHOT.index("version=0.12.0") - 1
    assert {parse_snapshot(SNAPSHOT[:length]) is None for length in range(end)} == {True}


def test_power_cut_that_empties_snapshots_restores_the_record_and_marks_versions_unknown(node: Remembered) -> None:
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


def test_death_in_the_middle_of_a_restoration_loses_nothing(node: Remembered) -> None:
    node.serves(made("a"), made("b"))
    node.record.begin()
    # TorchServe restarts and has one of them, a third is registered, and it dies again.
    node.serves()
    node.serves(made("a", min_workers=0), made("c"))
    assert node.record.begin() == node.record.read_pending() == [made("a"), made("b"), made("c")]
    node.record.finish()
    node.serves(made("a"))
    assert node.record.read() == [made("a")]
    # A version whose archive is another one now is tried again at the next start.
    node.record.finish([made("b")])
    assert (node.record.read_pending(), node.record.begin()) == ([made("b")], [made("b"), made("a")])
    # The release before wrote other fields, too.
    (entry,) = json.loads((node.folder / "restored.json").read_text())[:1]
    (node.folder / "restore.json").write_text(json.dumps([{**entry, "since_s": 1.0}]))
    assert node.record.read_pending() == [made("b")]
    node.record.remove()
    assert (node.record.exists(), node.record.begin()) == (False, [])


@pytest.mark.parametrize("is_watched", [False, True])
def test_archive_that_was_built_again_is_not_restored_whatever_the_clocks_say(
    is_watched: bool, node: Remembered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.nodes.run.lifecycle.CHECK_S", 0)

    def build(fingerprint: str | None, path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("MAR-INF/MANIFEST.json", '{"model": {"modelName": "a", "modelVersion": "1.0"}}')
            if fingerprint:
                archive.writestr("build.json", json.dumps({"fingerprint": fingerprint}))

    def restored(fingerprint: str | None) -> str:
        build(fingerprint, tmp_path / "a.mar")
        ((line, lost),) = restore(LocalNode("node-1", tmp_path, server), [again])
        assert (not lost) is (": restored, " in line)
        return line

    described = {"minWorkers": 0, "maxWorkers": 0, "modelVersion": "1.0"}
    calls = {"versions": lambda *_, **_more: [], "register": lambda *_, **_more: None, "describe": lambda *_: described}
    of = {"settings": SimpleNamespace(model_store=""), "management": SimpleNamespace(**calls)}
    server: Any = SimpleNamespace(directory=tmp_path, logs=tmp_path, **of)
    served = made("a", min_workers=0, max_workers=0)
    for unpacked, wrong, right in (("first", ("second", None), ("first",)), (None, (), ("first", None))):
        # As TorchServe has unpacked it.
        build(unpacked, tmp_path / "unpacked.mar")
        with zipfile.ZipFile(tmp_path / "unpacked.mar") as archive:
            archive.extractall(tmp_path / "tmp" / "models" / "0123")
        node.serves(served)
        build("second", tmp_path / "a.mar")
        if is_watched:
            with pytest.raises(ServerError, match="TorchServe: dead"):
                watch_node(node.local, threading.Event())
        node.record.finish([node.record.begin()[0]])
        # A server that starts removes what it had unpacked, and the next start tries a lost version again.
        shutil.rmtree(tmp_path / "tmp", ignore_errors=is_watched)
        (again,) = node.record.begin()
        words = "node-1: a 1.0 is not restored: a.mar is not the archive that version 1.0 was registered from: raise"
        assert all(restored(each).startswith(words) for each in wrong)
        assert all(restored(each).startswith("node-1: a 1.0: restored, ") for each in right)
        node.record.finish()


def test_process_has_ended_with_its_last_thread_and_not_with_its_first() -> None:
    program = "import ctypes, sys, threading; threading.Thread(target=sys.stdin.read).start(); "
    program += "ctypes.CDLL(None).pthread_exit(None)"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as started:
        process = psutil.Process(started.pid)
        until(lambda: process.status() == psutil.STATUS_ZOMBIE)
        assert not has_ended(process)
        assert started.stdin is not None
        started.stdin.close()
        until(lambda: has_ended(process))
