"""Envoy's process: its errors, its logs and its end."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from deploy.gateway import supervisor
from deploy.gateway.envoy import files
from deploy.gateway.envoy.listeners import bootstrap
from deploy.gateway.envoy.process import Envoy, EnvoyError
from deploy.gateway.settings import GatewaySettings
from deploy.gateway.state import Fleet
from deploy.models import ROOT
from tests.deploy.gateway.envoy.harness import Gateway, wait

WAIT = {"X-Do": "wait"}


def test_stop_ends_what_does_not_come_to_its_end(tmp_path: Path) -> None:
    # A folder whose path is longer than a socket's limit.
    with Gateway(tmp_path / ("a" * 100), GatewaySettings()) as gateway, ThreadPoolExecutor(1) as threads:
        sent = threads.submit(gateway.ask, "POST", "/predictions/m", headers=WAIT)
        wait(lambda: gateway.in_flight() == 1)
        assert (gateway.envoy.stop(0.2), gateway.envoy.pid()) == (False, None)
        with pytest.raises(requests.ConnectionError):
            sent.result(60)


def test_what_keeps_it_from_starting_is_named(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Envoy(tmp_path)
    files.write(gateway.settings, Fleet(), tmp_path)
    # The kernel would let two processes share the clients of one port.
    with pytest.raises(EnvoyError, match=rf"127\.0\.0\.1:{gateway.settings.ports.http}"):
        second.keep(bootstrap(gateway.settings))
    assert second.pid() is None
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvoyError, match="envoy is not installed"):
        second.keep(bootstrap(gateway.settings))


def test_connections_beyond_the_limit_of_open_files_are_refused_in_one_line(tmp_path: Path) -> None:
    words = ["prlimit", "--nofile=4000", sys.executable, "-m", "deploy.gateway", "run", "--state-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == "gateway: limits.connections 4096 needs 8960 open files, and `ulimit -Hn` is 4000\n"


def test_logs_are_put_aside_as_they_grow_and_no_line_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES", 300)
    # A container's own output, behind a link of few bytes.
    (tmp_path / "out").write_text("x" * 1000)
    (tmp_path / "linked.log").symlink_to("out")
    with Gateway(tmp_path, GatewaySettings()) as gateway, (tmp_path / "own.log").open("a") as own:
        for word in ("first", "second"):
            own.write(word * 100)
            own.flush()
            gateway.ask("GET", f"/{word}")
            gateway.logged(path=f"/{word}")
            supervisor._rotate_logs(tmp_path, gateway.envoy)
            wait((tmp_path / "access.log").exists)
            assert f'"/{word}"' in (tmp_path / "access.log.1").read_text()
            assert (tmp_path / "own.log.1").read_text() == word * 100
            assert (tmp_path / "linked.log").read_text() == "x" * 1000
