"""Starts, supervises and stops nodes: none forgets what it served, and none is stopped in the middle of an answer.

run_node: running already -> used as it is
          not running     -> started, and what its record has is served again
end_node: whoever supervises it is told -> nothing in hand any more -> stopped
"""

import os
import signal
import threading
from collections.abc import Callable

import psutil

from deploy.run.in_flight import wait_answered
from deploy.run.machine import Local
from deploy.run.record import Record
from deploy.run.restore import restore
from deploy.run.server import Server, ServerError
from deploy.run.waits import Waits, banner

# Seconds between two looks at a server that is supervised.
SUPERVISE_S = 1.0
# Seconds that the system is given to close the ports of a server that was killed.
PORTS_S = 10.0


def record_of(local: Local) -> Record:
    """What is known of what a node serves."""
    return Record(local.folder, local.server.logs)


def run_node(local: Local, waits: Waits) -> bool:
    """Start a node unless it runs, have it serve what it served, and say so.

    Returns:
        Whether it serves what it did before: it was started, and not stopped for good since.

    Raises:
        StartFailed: it did not come up.
    """
    server, record = local.server, record_of(local)
    if server.pid() is not None:
        server.authorize()
        print(f"{local.title}: already running, process {server.pid()}")
        return record.exists() and server.settings.has_model_api
    if (death := server.died()) is not None:
        banner(f"{local.title}: {death}", "It is started anew.")
        server.forget()
    # Where models cannot be registered, the configuration alone says what is served.
    is_restored = record.exists() and server.settings.has_model_api
    kept = record.keep()
    with waits.on(f"{local.title}: starting"):
        server.start(ports_s=PORTS_S if death is not None else 0.0)
    print(f"{local.title}: started, process {server.pid()}, log in {local.logs_shown}/")
    if is_restored:
        for line in restore(local, kept, waits):
            print(line)
    record.done()
    return is_restored


def end_node(local: Local, say: Callable[[str], None], *, is_for_good: bool, timeout_s: float | None = None) -> bool:
    """Wait until a node has nothing in hand, and stop it.

    Args:
        local: the node.
        say: told what is waited for.
        is_for_good: whether it is to forget what it serves; not that of a supervisor who starts it again.
        timeout_s: most seconds to wait; None for the longest responseTimeout of its models.

    Returns:
        Whether it was running.
    """
    server = local.server
    was_running = server.pid() is not None
    if was_running:
        server.authorize()
        is_answered = wait_answered(server, lambda words: say(f"{local.title}: {words}"), timeout_s=timeout_s)
        if not is_answered and server.pid() is not None:
            say(f"{local.title}: still busy after responseTimeout: what it has in hand is cut off")
        was_running = server.stop()
    if is_for_good and supervisor(local) is None:
        record_of(local).forget()
    return was_running


def supervise(
    local: Local,
    drain: Callable[[Local], float | None] = lambda _: None,
    *,
    look: Callable[[], None] = lambda: None,
    every_s: float = SUPERVISE_S,
) -> None:
    """Wait as long as the node lives; for systemd, Kubernetes and whatever else starts anew what ends.

    Args:
        local: a running node.
        drain: called once a SIGTERM or Ctrl-C has come, before the node is stopped; a second one ends at once. It says
            how many seconds the node may take then for what it has in hand; None for its longest responseTimeout.
        look: called between two looks at the node; what it raises ends this.
        every_s: seconds between two looks.

    Raises:
        ServerError: it has died.
    """
    server, is_told = local.server, threading.Event()

    def told(*_: object) -> None:
        if is_told.is_set():
            raise KeyboardInterrupt
        is_told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)
    local.folder.mkdir(parents=True, exist_ok=True)
    mark = local.folder / "run.pid"
    mark.write_text(f"{os.getpid()} {psutil.Process().create_time()}")
    try:
        while not is_told.wait(every_s):
            if server.pid() is None:
                break
            look()
        if is_told.is_set():
            try:
                end_node(local, print, is_for_good=False, timeout_s=drain(local))
            except KeyboardInterrupt:
                server.stop()
        elif (death := server.died()) is not None:
            server.forget()
            raise ServerError(f"{local.title}: {death}")
    finally:
        mark.unlink(missing_ok=True)


def supervisor(local: Local) -> int | None:
    """The process that supervises a node (`python -m deploy.run run`); None where there is none."""
    try:
        pid, created = (local.folder / "run.pid").read_text().split()
        return int(pid) if psutil.Process(int(pid)).create_time() == float(created) else None
    except (OSError, ValueError, psutil.Error):
        return None


def stopped_words(server: Server) -> str:
    """What to say of a server that was to be stopped and did not run."""
    if (death := server.died()) is not None:
        server.forget()
        return f"not running, {death}"
    return "not running"
