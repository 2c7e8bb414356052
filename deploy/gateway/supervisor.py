"""Keeps the gateway's two processes alive, and ends them in order.

    Supervisor ─┬> python -m deploy.gateway.control   writes Envoy's files, then answers; stopped last
                └> envoy                              starts with those files; stopped when its last answer is out

One that dies is started anew. Where Envoy dies again and again the gateway ends, for whoever watches over it to see;
where the control process does not come up again, Envoy serves on as it was configured last.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.gateway.envoy.process import Envoy, EnvoyError
from deploy.gateway.settings import Settings
from deploy.models import ROOT

logger = logging.getLogger(__name__)

# Seconds until the control process must answer: it looks at the nodes first. And until it must have ended.
START_S, STOP_S = 60.0, 15.0
# Seconds between two looks at the processes.
LOOK_S = 0.25
# So many deaths of Envoy within so many seconds are no accident.
DEATHS, DEATHS_S = 5, 60.0
# Seconds between two attempts to have a control process again.
RETRY_S = 5.0


class GatewayFailed(Exception):
    """The gateway did not come up, or could not be kept up; the message says why."""


class KeptEnvoy:
    """An Envoy that is started anew where it dies, unless it does so again and again."""

    def __init__(self, envoy: Envoy, start: Callable[[], object]) -> None:
        """Keep `envoy`, which `start` starts."""
        self._envoy = envoy
        self._start = start
        self._deaths: deque[float] = deque(maxlen=DEATHS)

    def start(self) -> None:
        """Start it.

        Raises:
            GatewayFailed: it does not come up.
        """
        try:
            self._start()
        except EnvoyError as error:
            raise GatewayFailed(" / ".join(str(error).splitlines())) from None

    def keep(self) -> None:
        """Start it anew where it has died.

        Raises:
            GatewayFailed: it does not come up, or dies again and again.
        """
        if self._envoy.pid() is not None:
            return
        logger.error("Envoy has died")
        self._deaths.append(time.monotonic())
        if len(self._deaths) == DEATHS and self._deaths[-1] - self._deaths[0] < DEATHS_S:
            raise GatewayFailed(f"Envoy has died {DEATHS} times in {DEATHS_S:g} s")
        self.start()


class Supervisor:
    """The control process and Envoy."""

    def __init__(self, settings: Settings, config: Path, nodes: Path, run: Path) -> None:
        """Describe them; starts nothing.

        Args:
            settings: what `config` holds.
            config, nodes: gateway.yaml and nodes.json, which the control process reads for itself.
            run: the folder of logs, process ids and Envoy's files.
        """
        self._settings = settings
        self._words = ["--config", str(config), "--nodes", str(nodes), "--run", str(run)]
        self._log = run / "control.log"
        self._envoy = Envoy(run)
        self._kept = KeptEnvoy(self._envoy, lambda: self._envoy.start(settings))
        self._control: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start both, the control process first.

        Raises:
            GatewayFailed: one of them did not come up; nothing is left of them.
        """
        try:
            self._start_control()
            self._kept.start()
        except BaseException:
            self.stop()
            raise

    def watch(self, is_told: threading.Event) -> None:
        """Keep both alive until told to end.

        Raises:
            GatewayFailed: Envoy keeps dying.
        """
        again_s = 0.0
        while not is_told.wait(LOOK_S):
            self._kept.keep()
            status = None if self._control is None else self._control.poll()
            if status is not None and time.monotonic() >= again_s:
                logger.error("the control process ended with %s: %s", status, self._last_words())
                again_s = time.monotonic() + RETRY_S
                try:
                    self._start_control()
                except GatewayFailed as error:
                    logger.error("%s", error)

    def stop(self) -> None:
        """End both: Envoy first, when its last answer is out."""
        try:
            if not self._envoy.stop(self._settings.limits.response_s):
                logger.warning("Envoy: answers were cut off after %g s", self._settings.limits.response_s)
        finally:
            if self._control is not None:
                end(self._control)
                self._control = None

    def _start_control(self) -> None:
        self._control = started(["deploy.gateway.control", *self._words], self._log)
        ports = self._settings.ports
        deadline = time.monotonic() + START_S
        while not listens(ports.internal_address, ports.control) or not listens(ports.internal_address, ports.metrics):
            if self._control.poll() is not None or time.monotonic() > deadline:
                raise GatewayFailed(f"the control process did not come up ({self._log}): {self._last_words()}")
            time.sleep(LOOK_S / 2)
        if self._control.poll() is not None:
            raise GatewayFailed(f"the control process did not come up ({self._log}): {self._last_words()}")

    def _last_words(self) -> str:
        try:
            return " / ".join(self._log.read_text(errors="replace").strip().splitlines()[-2:]) or "without a word"
        except OSError:
            return "without a word"


def started(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `python -m WORDS` in the background; what the last process of that log said is kept.

    It may have said why it died. The new one writes its log line by line.
    """
    if log.exists():
        log.replace(log.with_suffix(".last.log"))
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is for whoever ends the processes in order.
            start_new_session=True,
        )


def listens(host: str, port: int) -> bool:
    """Whether somebody accepts connections there."""
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
    try:
        with socket.create_connection((anywhere.get(host, host), port), timeout=1.0):
            return True
    except OSError:
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and make it."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
