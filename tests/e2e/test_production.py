"""`make serve CONFIG=`: a server whose configuration names its models, as a user starts and stops it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from deploy.models import ROOT
from deploy.sandbox import Ports, config_for
from deploy.server import Server
from tests.e2e.conftest import MOBILENET

CALL = re.compile(r'^\$ (curl -H "Authorization: Bearer (.*)" -T \S+ http\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Site:
    """A repository's folder as `make serve` has it, with a model store and a temporary folder of its own."""

    config: Path
    temporary: Path

    @property
    def store(self) -> Path:
        return self.config.parent / "store"

    @property
    def environment(self) -> dict[str, str]:
        # As a user's shell has it: under `make test` a make would count itself a part of that one, and say so.
        own = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
        return {**own, "TMPDIR": str(self.temporary), "TEMP": str(self.temporary)}

    def make(self, target: str, *more: str) -> subprocess.CompletedProcess[str]:
        # Into files: a server that runs on keeps a pipe open, and its reader waiting.
        with (self.temporary / "out").open("w+") as out, (self.temporary / "err").open("w+") as err:
            finished = subprocess.run(
                ["make", "--no-print-directory", target, f"CONFIG={self.config}", *more],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                check=False,
                timeout=200,
            )
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(finished.args, finished.returncode, out.read(), err.read())

    def edit(self, before: str, after: str) -> None:
        text = self.config.read_text()
        assert before in text
        self.config.write_text(text.replace(before, after))

    def processes(self) -> list[int]:
        """Everything that a server of this site has left running."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if str(self.config) in words or any(str(self.temporary) in word for word in words):
                found.append(process.pid)
        return found


@pytest.fixture
def site(model_store: Path, tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "config.properties", tmp_path / "tmp")
    made.temporary.mkdir()
    made.store.mkdir()
    shutil.copy(model_store / f"{MOBILENET}.mar", made.store)
    text = (ROOT / "config.production.properties").read_text().replace("resnet-152", MOBILENET)
    made.config.write_text(config_for(text, Ports.free(), ROOT, made.store))
    yield made
    made.make("stop")


def server(site: Site) -> Server:
    return Server(site.config, temporary=site.temporary)


@pytest.mark.timeout(300)
def test_production_is_proven_ready_called_with_its_key_and_stopped(site: Site) -> None:
    started = site.make("serve")
    assert started.returncode == 0, started.stderr
    assert f"{MOBILENET}: READY, version 1.0" in started.stdout
    keys = ROOT / "key_file.json"
    assert keys.stat().st_mode & 0o777 == 0o600
    (call,) = CALL.findall(started.stdout)
    key = json.loads(keys.read_text())["inference"]["key"]
    assert call[1] == key
    answer = subprocess.run(["bash", "-c", f"{call[0]} -s --noproxy '*'"], cwd=ROOT, capture_output=True, check=True)
    assert "espresso" in json.loads(answer.stdout)
    # TorchServe's snapshots, in logs/config/, among them.
    for log in (path for path in (ROOT / "logs").rglob("*") if path.is_file()):
        assert log.suffix == ".gz" or key not in log.read_text(errors="replace"), log

    again = site.make("serve")
    assert again.returncode == 0
    assert "already running" in again.stdout
    other = subprocess.run(
        [sys.executable, "-m", "deploy.serve", "start"],
        cwd=ROOT,
        env=site.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert other.returncode == 1
    assert re.search(r"a TorchServe runs with \S+config\.properties, process \d+: make stop ends it", other.stderr)

    assert "TorchServe: stopped" in site.make("stop").stdout
    assert not keys.exists()
    assert "TorchServe: not running" in site.make("stop").stdout


def remove_archive(site: Site) -> None:
    (site.store / f"{MOBILENET}.mar").unlink()


def name_another_version(site: Site) -> None:
    site.edit('"1.0":', '"2.0":')


def name_another_model(site: Site) -> None:
    site.edit(f'models={{"{MOBILENET}"', 'models={"squeezenet"')


def cut_archive(site: Site) -> None:
    path = site.store / f"{MOBILENET}.mar"
    path.write_bytes(path.read_bytes()[:100_000])


def lower_heap(site: Site) -> None:
    site.edit("-Xmx2700m", "-Xmx512m")


def break_worker(site: Site) -> None:
    """An archive whose configuration no worker takes."""
    path, folder = site.store / f"{MOBILENET}.mar", site.temporary / "unpacked"
    shutil.unpack_archive(path, folder, "zip")
    config = folder / "model-config.yaml"
    config.write_text(config.read_text().replace("resize_size", "resize_sise"))
    path.unlink()
    shutil.make_archive(str(path), "zip", folder)
    path.with_name(f"{path.name}.zip").rename(path)
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (remove_archive, rf"store/{MOBILENET}\.mar is missing, which load_models names"),
        (name_another_version, rf"{MOBILENET}\.mar holds {MOBILENET} 1\.0, and models= names 2\.0 and 1\.0-untrained"),
        (name_another_model, rf"{MOBILENET}\.mar holds {MOBILENET}, which models= has no entry for"),
        (cut_archive, rf"{MOBILENET}\.mar"),
        (lower_heap, r"72 requests may be held at once, .* that needs -Xmx\d+m"),
        (
            break_worker,
            r"Cannot load mobilenet-v2: InvalidConfig: this archive is not as it was .*model-config.yaml",
        ),
    ],
)
def test_production_that_is_not_as_configured_fails_with_one_line_and_leaves_nothing(
    site: Site, spoil: object, line: str
) -> None:
    assert callable(spoil)
    spoil(site)
    started = site.make("serve")
    assert started.returncode != 0
    said = [each for each in started.stderr.splitlines() if each and not each.startswith("make: ")]
    assert len(said) == 1, started.stderr
    assert re.match(rf"serve: .*{line}", said[0])
    deadline = time.monotonic() + 30
    while site.processes():
        assert time.monotonic() < deadline, site.processes()
        time.sleep(0.2)
    assert not (ROOT / "key_file.json").exists()


def test_untrained_archive_has_an_entry_and_is_said_to_be_untrained(site: Site, model_store: Path) -> None:
    shutil.copy(model_store / "resnet-152.mar", site.store)
    text = (ROOT / "config.production.properties").read_text()
    site.config.write_text(config_for(text, Ports.free(), ROOT, site.store))
    started = site.make("serve")
    assert started.returncode == 0, started.stderr
    assert "resnet-152: READY, version 1.0-untrained" in started.stdout
    assert "resnet-152: RANDOM weights" in started.stderr
    running = server(site)
    running.authorize()
    described = running.management.describe("resnet-152")
    assert (described["minWorkers"], described["maxWorkers"], described["batchSize"]) == (1, 1, 32)


def test_ports_that_are_taken_are_all_named(site: Site) -> None:
    found = server(site).settings.ports
    taken = ("inference_address", "grpc_management_port")
    sockets = [socket.create_server(found[name]) for name in taken]
    try:
        started = site.make("serve")
    finally:
        for each in sockets:
            each.close()
    assert started.returncode != 0
    for name in taken:
        host, port = found[name]
        assert f"{host}:{port} is taken by another server ({name})" in started.stderr
    assert not site.processes()


@pytest.mark.parametrize(("sent", "code"), [("kill", 1), ("stop", 0)])
def test_supervised_server_ends_its_supervisor_and_the_other_way_round(site: Site, sent: str, code: int) -> None:
    out = site.temporary / "out"
    with out.open("w") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "deploy.serve", "run", "--config", str(site.config)],
            cwd=ROOT,
            env={**site.environment, "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 120
        while "\n$ curl" not in out.read_text():
            assert time.monotonic() < deadline
            assert supervisor.poll() is None, out.read_text()
            time.sleep(0.2)
        assert json.loads((ROOT / "key_file.json").read_text())["inference"]["key"] not in out.read_text()
        running = server(site)
        pid = running.pid()
        assert pid is not None
        if sent == "kill":
            os.kill(pid, signal.SIGKILL)
        else:
            supervisor.terminate()
        assert supervisor.wait(90) == code
        assert running.pid() is None
        assert (f"process {pid} has died" in out.read_text()) == (sent == "kill")
    finally:
        supervisor.kill()
        supervisor.wait()
