"""Keeps Envoy, the control process and this machine's nodes alive, and ends the gateway in order.

    supervise ─┬> python -m deploy.gateway.control   writes Envoy's files, then answers; stopped last
               ├> envoy                              starts with those files; stopped when its last answer is out
               └> the nodes that `make serve` started, where they have died; they are not stopped

One that dies is started again, and so is a control process that hangs. Where Envoy dies again and again the gateway
ends; where the control process does not come up again, Envoy serves on as it was configured last.
"""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

from deploy.gateway.envoy.listeners import bootstrap
from deploy.gateway.envoy.process import Envoy, EnvoyError
from deploy.gateway.settings import Settings, reached
from deploy.models import ROOT
from deploy.run.machine import Layout, LocalNode, local_nodes
from deploy.run.nodes import start_node, watcher
from deploy.run.server import ServerError
from handlers.errors import InvalidConfig
from torchserve_client.errors import ManagementError

logger = logging.getLogger(__name__)

# The file in which the control process says why the gateway does not work as configured; empty if it does.
PROBLEM = "problem"
START_S = 60.0  # seconds until the control process must answer, since it looks at the nodes first
HANG_S = 15.0  # seconds without a sign of life after which it hangs
STOP_S = 15.0  # seconds until it must have ended
LOOK_S = 0.25  # seconds between two looks at the processes
NODES_S = 1.0  # seconds between two looks at the nodes
# Seconds between two attempts to have a control process again.
RETRY_S = 5.0
ACCESS_LOG = "access.log"  # some 500 bytes for a request
LOG_BYTES = 200 << 20  # of a log, after which it is put aside


class GatewayFailed(Exception):
    """The gateway did not come up, or could not be kept up; the message says why."""


class Control:
    """The control process."""

    def __init__(self, config: Path, nodes: Path, run: Path) -> None:
        """Describe it; starts nothing."""
        self.has_answered = False
        self._words = ["deploy.gateway.control", str(config), str(nodes), str(run)]
        self._log, self._problem = run / "control.log", run / PROBLEM
        self._said = ""
        self._process: subprocess.Popen[bytes] | None = None
        # When it last showed life, and when another may be started, on the monotonic clock.
        self._alive_s = self._again_s = 0.0

    def keep(self) -> None:
        """Start it where it does not run, and end it where it hangs; never waits.

        Raises:
            GatewayFailed: it has ended by itself before it answered for the first time.
            OSError: it cannot be started now.
        """
        now = time.monotonic()
        if self._process is None:
            if now >= self._again_s:
                # What it sends is its sign of life, and that nobody is at the other end is the sign that it is alone.
                self._life, other = socket.socketpair()
                with other:
                    self._process = started(self._words, self._log, other.fileno())
                # It looks at the nodes before it answers.
                self._alive_s, self._again_s = now + START_S - HANG_S, now + RETRY_S
            return
        with suppress(OSError):
            if self._life.recv(4096, socket.MSG_DONTWAIT):
                self._alive_s, self.has_answered = now, True
                if (problem := problem_of(self._problem)) != self._said:
                    logger.error("%s", problem or "the gateway works as configured again")
                    self._said = problem
        if self._process.poll() is None and now - self._alive_s > HANG_S:
            logger.error("the control process has shown no life for %d s: it is killed", now - self._alive_s)
            self._process.kill()
            self._process.wait()
        if (status := self._process.poll()) is not None:
            self._process = None
            words = " / ".join(self._log.read_text(errors="replace").strip().splitlines()[-2:])
            if not self.has_answered and status > 0:
                raise GatewayFailed(f"the control process did not come up ({self._log}): {words}")
            logger.error("the control process ended with %s: %s", status, words)

    def stop(self) -> None:
        """Ask it to end, and make it."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def supervise(settings: Settings, config: Path, nodes: Path, run: Path, is_ending: threading.Event) -> None:
    """Keep all alive until `is_ending` is set, and end in order: Envoy first, when its last answer is out.

    Raises:
        GatewayFailed: one of them did not come up, or Envoy keeps dying.
    """
    control, envoy = Control(config, nodes, run), Envoy(run)
    threading.Thread(target=_keep_nodes, args=(nodes.parent, is_ending), name="nodes", daemon=True).start()
    try:
        while not is_ending.wait(LOOK_S):
            try:
                if control.has_answered:
                    envoy.keep(bootstrap(settings))
                control.keep()
                _bound_logs(run, envoy)
            except OSError as error:
                # A disk that is full, or cannot be written, ends nothing that runs.
                logger.error("%s", error)
                is_ending.wait(RETRY_S)
    except EnvoyError as error:
        raise GatewayFailed(str(error)) from None
    finally:
        limit_s = settings.limits.response_s
        if not envoy.stop(limit_s):
            logger.warning("Envoy: answers were cut off after %g s", limit_s)
        control.stop()


def _bound_logs(run: Path, envoy: Envoy) -> None:
    """Put each log aside that has grown, in place of the one before; a link leads to a container's own output."""
    for log in [each for each in run.glob("*.log") if each.lstat().st_size > LOG_BYTES]:
        if log.name == ACCESS_LOG and (pid := envoy.pid()) is not None:
            log.replace(log.with_suffix(".log.1"))
            os.kill(pid, signal.SIGUSR1)
        else:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)


def _keep_nodes(folder: Path, is_ending: threading.Event) -> None:
    """Start again the nodes of `make serve` that have died, and that nothing else watches."""
    layout: Layout | None = None
    nodes: list[LocalNode] = []
    while not is_ending.wait(NODES_S):
        try:
            if (found := Layout.read(folder)) != layout:
                layout, nodes = found, local_nodes(found, folder) if found else []
            for node in nodes:
                if (death := node.server.died()) is not None and watcher(node) is None:
                    logger.error("%s: %s", node.title, death)
                    # What cannot be printed, since a log's disk is full, keeps no node from its start.
                    with redirect_stdout(StringIO()) as said, redirect_stderr(StringIO()):
                        start_node(node)
                    logger.info("%s", said.getvalue().strip().replace("\n", "; "))
        except (ServerError, ManagementError, InvalidConfig, OSError) as error:
            logger.error("%s", error)


def started(words: Sequence[str], log: Path, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start `python -m WORDS` in the background."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is for the supervisor, which ends the processes in order.
            start_new_session=True,
        )


def problem_of(file: Path) -> str:
    """Read why a gateway does not work as configured; "" if it does."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def listens(host: str, port: int) -> bool:
    """Return whether anything accepts connections there."""
    try:
        with socket.create_connection((reached(host), port), timeout=1.0):
            return True
    except OSError:
        return False
