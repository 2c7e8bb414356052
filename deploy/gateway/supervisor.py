"""Keeps Envoy, the control process and this machine's nodes alive, and ends the gateway in order.

    supervise ─┬> python -m deploy.gateway.control   writes Envoy's files, then answers; stopped last
               ├> envoy                              starts with those files; stopped when its last answer is out
               └> the nodes that `make serve` started, where they have died; they are not stopped

One that dies is started again, and so is a control process that hangs. Where Envoy dies again and again the gateway
ends; where the control process does not come up again, Envoy serves on as it was configured last.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
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

# The file that the control process makes every second once it answers, and this process takes away.
ALIVE = "control.alive"
# Seconds until the control process must answer, since it looks at the nodes first; without a sign of life after which
# it hangs; and until it must have ended.
START_S, HANG_S, STOP_S = 60.0, 15.0, 15.0
# Seconds between two looks at the processes, and at the nodes.
LOOK_S, NODES_S = 0.25, 1.0
# Seconds between two attempts to have a control process again.
RETRY_S = 5.0


class GatewayFailed(Exception):
    """The gateway did not come up, or could not be kept up; the message says why."""


class Control:
    """The control process."""

    def __init__(self, config: Path, nodes: Path, run: Path) -> None:
        """Describe it; starts nothing."""
        self.has_answered = False
        self._words = ["deploy.gateway.control", str(config), str(nodes), str(run)]
        self._log, self._alive = run / "control.log", run / ALIVE
        self._process: subprocess.Popen[bytes] | None = None
        # When it last showed life, and when another may be started, on the monotonic clock.
        self._alive_s = self._again_s = 0.0

    def keep(self) -> None:
        """Start it where it does not run, and end it where it hangs; never waits.

        Raises:
            GatewayFailed: it has ended before it answered for the first time.
        """
        now = time.monotonic()
        if self._process is None:
            if now >= self._again_s:
                self._alive.unlink(missing_ok=True)
                self._process = started(self._words, self._log)
                # It looks at the nodes before it answers.
                self._alive_s, self._again_s = now + START_S - HANG_S, now + RETRY_S
            return
        if self._alive.exists():
            self._alive.unlink()
            self._alive_s, self.has_answered = now, True
        if self._process.poll() is None and now - self._alive_s > HANG_S:
            logger.error("the control process has shown no life for %d s: it is killed", now - self._alive_s)
            self._process.kill()
            self._process.wait()
        if (status := self._process.poll()) is not None:
            self._process = None
            words = " / ".join(self._log.read_text(errors="replace").strip().splitlines()[-2:])
            if not self.has_answered:
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

    Args:
        settings: what `config` holds.
        config, nodes: gateway.yaml and nodes.json, which the control process reads for itself.
        run: the folder of logs, process ids and Envoy's files.
        is_ending: set to end.

    Raises:
        GatewayFailed: one of them did not come up, or Envoy keeps dying.
    """
    control, envoy = Control(config, nodes, run), Envoy(run)
    threading.Thread(target=_keep_nodes, args=(nodes.parent, is_ending), name="nodes", daemon=True).start()
    try:
        while not is_ending.is_set():
            control.keep()
            if control.has_answered:
                envoy.keep(bootstrap(settings))
            is_ending.wait(LOOK_S)
    except EnvoyError as error:
        raise GatewayFailed(str(error)) from None
    finally:
        limit_s = settings.limits.response_s
        if not envoy.stop(limit_s):
            logger.warning("Envoy: answers were cut off after %g s", limit_s)
        control.stop()


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
                    start_node(node)
        except (ServerError, ManagementError, InvalidConfig, OSError) as error:
            logger.error("%s", error)


def started(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `python -m WORDS` in the background."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is for the supervisor, which ends the processes in order.
            start_new_session=True,
        )


def listens(host: str, port: int) -> bool:
    """Return whether anything accepts connections there."""
    try:
        with socket.create_connection((reached(host), port), timeout=1.0):
            return True
    except OSError:
        return False
