"""Envoy's process: what it starts on, finds again, refuses, and how it ends."""

import os
import shutil
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from deploy.gateway.envoy import admin, files
from deploy.gateway.envoy.process import Envoy, EnvoyError
from deploy.gateway.settings import Limits, Ports, Settings
from deploy.gateway.state import Fleet
from tests.deploy.gateway.envoy.harness import Gateway, free_port, wait


def settings() -> Settings:
    return Settings(ports=Ports(http=free_port(), grpc=free_port(), control=free_port()))


def test_stop_answers_what_is_due_and_takes_nothing_new(tmp_path: Path) -> None:
    with Gateway(tmp_path / "run", Settings()) as gateway, ThreadPoolExecutor(2) as threads:
        url = f"{gateway.url}/predictions/m"
        sent = threads.submit(requests.post, url, headers={"X-Do": "wait"}, timeout=60)
        wait(lambda: sum(each.in_flight for each in gateway.envoy.traffic().values()) == 1)
        stopped = threads.submit(gateway.envoy.stop)

        def is_closed() -> bool:
            try:
                requests.post(url, timeout=5)
            except requests.ConnectionError:
                return True
            return False

        wait(is_closed)
        assert gateway.envoy.pid() is not None
        for node in gateway.nodes:
            node.release.set()
        assert sent.result(60).status_code == 200
        assert stopped.result(60) is True
        assert gateway.envoy.pid() is None
        assert gateway.envoy.stop() is True


def test_stop_ends_what_does_not_come_to_its_end(tmp_path: Path) -> None:
    with Gateway(tmp_path / "run", Settings()) as gateway, ThreadPoolExecutor(1) as threads:
        sent = threads.submit(requests.post, f"{gateway.url}/predictions/m", headers={"X-Do": "wait"}, timeout=60)
        wait(lambda: sum(each.in_flight for each in gateway.envoy.traffic().values()) == 1)
        assert gateway.envoy.stop(0.2) is False
        assert gateway.envoy.pid() is None
        with pytest.raises(requests.ConnectionError):
            sent.result(60)


def test_another_control_process_finds_the_one_that_runs(tmp_path: Path) -> None:
    """In a folder whose path is longer than a socket's may be."""
    run = tmp_path / ("a" * 100) / "run"
    chosen = settings()
    files.write(chosen, Fleet(), run)
    first, second = Envoy(run), Envoy(run)
    assert first.start(chosen)
    try:
        assert not second.start(chosen)
        assert second.pid() == first.pid()
        assert second.traffic() == {}
        assert "envoy_server_uptime" in second.prometheus()
    finally:
        assert second.stop(10)
    assert first.pid() is None


def test_a_process_that_was_killed_is_started_anew(tmp_path: Path) -> None:
    chosen = settings()
    files.write(chosen, Fleet(), tmp_path)
    envoy = Envoy(tmp_path)
    envoy.start(chosen)
    pid = envoy.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait(lambda: envoy.pid() is None)
    with pytest.raises(admin.NoAnswer):
        envoy.prometheus()
    try:
        assert envoy.start(chosen)
        assert envoy.pid() not in (None, pid)
    finally:
        envoy.stop(10)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        chosen = replace(settings(), ports=Ports(http=port, grpc=free_port(), control=free_port()))
        files.write(chosen, Fleet(), tmp_path)
        envoy = Envoy(tmp_path)
        with pytest.raises(EnvoyError, match=rf"127\.0\.0\.1:{port}"):
            envoy.start(chosen)
        assert envoy.pid() is None


def test_a_folder_without_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvoyError, match="no configuration"):
        Envoy(tmp_path).start(settings())


def test_a_system_without_envoy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    chosen = settings()
    files.write(chosen, Fleet(), tmp_path)
    with pytest.raises(EnvoyError, match="for Linux alone"):
        Envoy(tmp_path).start(chosen)


def test_stop_under_load_cuts_off_no_answer(tmp_path: Path) -> None:
    """Clients with keep-alive: all that came to a node was answered, and then nobody listens."""

    def load(url: str) -> int:
        answered = 0
        with requests.Session() as session:
            while True:
                try:
                    assert session.post(url, data=b"x" * 1000, timeout=60).status_code == 200
                except requests.ConnectionError:
                    return answered
                answered += 1

    with Gateway(tmp_path / "run", Settings()) as gateway, ThreadPoolExecutor(8) as threads:
        before = sum(node.seen.total() for node in gateway.nodes)
        running = [threads.submit(load, f"{gateway.url}/predictions/m") for _ in range(8)]
        wait(lambda: sum(node.seen.total() for node in gateway.nodes) > 100)
        assert gateway.envoy.stop() is True
        answered = sum(each.result(60) for each in running)
        assert answered == sum(node.seen.total() for node in gateway.nodes) - before


def test_connections_beyond_the_limit_are_closed(tmp_path: Path) -> None:
    with Gateway(tmp_path / "run", Settings(limits=Limits(connections=5))) as gateway:
        port = gateway.settings.ports.http
        opened = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(10)]
        wait(lambda: "envoy_listener_downstream_global_cx_overflow" in gateway.envoy.prometheus())
        for connection in opened:
            connection.close()
        wait(lambda: is_answered(gateway))


def is_answered(gateway: Gateway) -> bool:
    try:
        return requests.post(f"{gateway.url}/predictions/m", timeout=30).status_code == 200
    except requests.ConnectionError:
        return False


def test_a_second_gateway_on_the_same_ports_does_not_start(tmp_path: Path) -> None:
    """The kernel would let both listen, and share the clients out."""
    chosen = settings()
    first, second = tmp_path / "first", tmp_path / "second"
    for run in (first, second):
        files.write(chosen, Fleet(), run)
    envoy = Envoy(first)
    envoy.start(chosen)
    try:
        with pytest.raises(EnvoyError, match=f":{chosen.ports.http}"):
            Envoy(second).start(chosen)
    finally:
        envoy.stop(10)
