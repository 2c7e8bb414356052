"""Starts, watches and stops one node; what is started again serves what it served.

start_node: running already -> used as it is
            not running     -> started, and what its record has is registered again
watch:      for systemd, which starts again what ends
stop_node:  `torchserve --stop`; what comes through the gateway is drained before (deploy.gateway.drain)
"""

import fcntl
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from deploy.models import ROOT
from deploy.progress import step
from deploy.run.machine import LocalNode
from deploy.run.restore import Record, restore
from deploy.run.server import ServerError

# Seconds between two looks at a server that is watched.
LOOK_S = 1.0
# Attempts to hold a file, and seconds between them: whoever only looks who holds it lets go of it at once.
ATTEMPTS, AGAIN_S = 50, 0.02


def banner(*lines: str) -> None:
    """Print a warning on stderr that stands out."""
    print("\n".join(["", "!" * 80, *(f"!!  {line}" for line in lines), "!" * 80, ""]), file=sys.stderr)


def shown(path: Path) -> Path:
    """Return a path as a person types it in the repository."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def start_node(local: LocalNode) -> None:
    """Start a node unless it runs, and have it serve what it served.

    Raises:
        ServerError: it did not come up.
        ManagementError: it does not answer any more.
    """
    with _locked(local.folder):
        server, record = local.server, Record(local)
        if server.pid() is not None:
            server.authorize()
            # Whoever started it may have ended before all was restored.
            wanted = record.waiting()
        else:
            if (death := server.died()) is not None:
                banner(f"{local.title}: {death}", "It is started anew.")
            wanted = record.keep()
            with step(f"{local.title}: starting"):
                server.start()
        # Where models cannot be registered, the configuration alone says what is served.
        if server.settings.has_model_api:
            for line in restore(local, wanted):
                print(line, flush=True)
        record.done()


def stop_node(local: LocalNode, *, is_for_good: bool) -> bool:
    """End a node's TorchServe; what it has in hand is cut off.

    Args:
        local: the node.
        is_for_good: whether it is to forget what it serves; one that is watched never is.

    Returns:
        Whether it was running.
    """
    was_running = local.server.stop()
    if is_for_good and watcher(local) is None:
        Record(local).forget()
    return was_running


def watch(local: LocalNode, is_told: threading.Event) -> None:
    """Wait until told to end, or until the node has died.

    Raises:
        ServerError: it has died, or another process watches it.
    """
    with held(local.folder / "run.pid"):
        while not is_told.wait(LOOK_S) and local.server.pid() is not None:
            pass
        if (death := local.server.died()) is not None:
            local.server.forget()
            raise ServerError(f"{local.title}: {death}")


def watcher(local: LocalNode) -> int | None:
    """Return the process that watches a node (`python -m deploy.run run`); None where there is none."""
    return holder(local.folder / "run.pid")


@contextmanager
def held(mark: Path) -> Iterator[None]:
    """Hold a file that names this process, so that there is one such process; its end, of whatever kind, lets go of it.

    Raises:
        ServerError: another process holds it.
        OSError: it cannot be written.
    """
    with mark.open("a") as file:
        for _ in range(ATTEMPTS):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(AGAIN_S)
        else:
            raise ServerError(f"already running, process {holder(mark)}")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def holder(mark: Path) -> int | None:
    """Return the process that holds a file; None where none does."""
    with suppress(OSError, ValueError), mark.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(file.read())
    return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep others from starting the same node: the gateway's supervisor does so too."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
