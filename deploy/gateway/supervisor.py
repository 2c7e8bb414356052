"""Keeps Envoy, the control process and this machine's nodes alive, and ends the gateway in order.

    supervise ─┬> python -m deploy.gateway.control   writes Envoy's files, then answers; stopped last
               ├> envoy                              starts with those files; stopped after its last response
               └> the nodes of `make serve` that have died; they are not stopped

Each is started again after its death, and so is a control process that hangs. If Envoy dies repeatedly, the gateway
ends; if the control process does not start again, Envoy serves with its last configuration.
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
from deploy.gateway.settings import GatewaySettings
from deploy.models import ROOT
from deploy.nodes.run import ServerError
from deploy.nodes.run.lifecycle import find_watcher, start_node
from deploy.nodes.run.machine import Layout, LocalNode, local_nodes
from deploy.nodes.run.node import reachable_host
from handlers.errors import InvalidConfig
from torchserve_client.errors import ManagementError

logger = logging.getLogger(__name__)

# The file in which the control process writes why the gateway does not work as configured; empty if it does.
PROBLEM = "problem"
START_S = 60.0  # seconds until the control process must answer, since it polls the nodes first
HANG_S = 15.0  # seconds without a heartbeat after which it hangs
STOP_S = 15.0  # seconds until it must have ended
CHECK_S = 0.25  # seconds between two checks of the processes
NODES_S = 1.0  # seconds between two checks of the nodes
RETRY_S = 5.0  # seconds between two starts of a control process
ACCESS_LOG = "access.log"  # about 500 bytes for a request
LOG_BYTES = 200 << 20  # size after which a log is rotated
LISTEN_S = 1.0  # timeout of a connection that probes a port


class GatewayFailed(Exception):
    """The gateway did not start, or one of its processes keeps failing; the message is one line with the reason."""


class Control:
    def __init__(self, config: Path, nodes_file: Path, state_dir: Path) -> None:
        self.has_answered = False
        self._command = ["deploy.gateway.control", str(config), str(nodes_file), str(state_dir)]
        self._log, self._problem_file = state_dir / "control.log", state_dir / PROBLEM
        self._logged_problem = ""
        self._process: subprocess.Popen[bytes] | None = None
        # Times on the monotonic clock: the last heartbeat, and the earliest next start.
        self._alive_s = self._retry_s = 0.0

    def keep(self) -> None:
        """Start the process if it does not run, and kill it if it hangs; never wait."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._retry_s:
                # The process sends its heartbeats through this socket, and ends when the other end is closed.
                self._heartbeats, other = socket.socketpair()
                with other:
                    self._process = start_module(self._command, self._log, other.fileno())
                # It polls the nodes before it answers.
                self._alive_s, self._retry_s = now + START_S - HANG_S, now + RETRY_S
            return
        with suppress(OSError):
            if self._heartbeats.recv(4096, socket.MSG_DONTWAIT):
                self._alive_s, self.has_answered = now, True
                if (problem := read_problem(self._problem_file)) != self._logged_problem:
                    logger.error("%s", problem or "the gateway works as configured again")
                    self._logged_problem = problem
        if self._process.poll() is None and now - self._alive_s > HANG_S:
            logger.error("the control process has sent no heartbeat for %d s: it is killed", now - self._alive_s)
            self._process.kill()
            self._process.wait()
        if (status := self._process.poll()) is not None:
            self._process = None
            self._heartbeats.close()
            lines = " / ".join(self._log.read_text(errors="replace").strip().splitlines()[-2:])
            if not self.has_answered and status > 0:
                raise GatewayFailed(f"the control process did not start ({self._log}): {lines}")
            logger.error("the control process ended with %s: %s", status, lines)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._heartbeats.close()


def supervise(
    settings: GatewaySettings, config: Path, nodes_file: Path, state_dir: Path, is_ending: threading.Event
) -> None:
    """Keep all processes alive until `is_ending` is set, and end them: Envoy first, after its last response."""
    control, envoy = Control(config, nodes_file, state_dir), Envoy(state_dir)
    threading.Thread(target=_keep_nodes, args=(nodes_file.parent, is_ending), name="nodes", daemon=True).start()
    try:
        while not is_ending.wait(CHECK_S):
            try:
                control.keep()
                if control.has_answered:
                    envoy.keep(bootstrap(settings))
                _rotate_logs(state_dir, envoy)
            except OSError as error:
                logger.error("%s", error)  # a full or read-only disk must not end a running process
                is_ending.wait(RETRY_S)
    except EnvoyError as error:
        raise GatewayFailed(str(error)) from None
    finally:
        limit_s = settings.limits.response_s
        if not envoy.stop(limit_s):
            logger.warning("Envoy: responses were cut off after %g s", limit_s)
        control.stop()


def _rotate_logs(state_dir: Path, envoy: Envoy) -> None:
    """Replace the previous copy of each large log by the log; a link leads to a container's own output, and is left."""
    for log in [each for each in state_dir.glob("*.log") if each.lstat().st_size > LOG_BYTES]:
        if log.name == ACCESS_LOG and (pid := envoy.pid()) is not None:
            log.replace(log.with_suffix(".log.1"))
            os.kill(pid, signal.SIGUSR1)
        else:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)


def _keep_nodes(folder: Path, is_ending: threading.Event) -> None:
    """Start the nodes of `make serve` again that have died, unless another process watches them."""
    layout: Layout | None = None
    nodes: list[LocalNode] = []
    while not is_ending.wait(NODES_S):
        try:
            if (found := Layout.read(folder)) != layout:
                layout, nodes = found, local_nodes(found, folder) if found else []
            for node in nodes:
                if (death := node.server.describe_death()) is not None and find_watcher(node) is None:
                    logger.error("%s: %s", node.title, death)
                    # A full disk of the log must not prevent the start.
                    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()):
                        start_node(node)
                    logger.info("%s", output.getvalue().strip().replace("\n", "; "))
        except (ServerError, ManagementError, InvalidConfig, OSError) as error:
            logger.error("%s", error)


def start_module(words: Sequence[str], log: Path, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal must reach only the supervisor, which ends the processes in order.
            start_new_session=True,
        )


def read_problem(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def is_listening(host: str, port: int) -> bool:
    try:
        with socket.create_connection((reachable_host(host), port), timeout=LISTEN_S):
            return True
    except OSError:
        return False
