"""Starts, watches and stops one node; a node that starts again serves the models that it served before.

start_node: running     -> used as it is
            not running -> started, and the models of its record are registered again
watch_node: for systemd, which starts a node again that has died
stop_node:  ends it; deploy.gateway.drain drains the requests of the gateway before
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from deploy.command import say
from deploy.nodes.run import ServerError
from deploy.nodes.run.machine import LocalNode
from deploy.nodes.run.processes import find_holder, hold_pid_file, lock
from deploy.nodes.run.restore import Record, restore
from deploy.places import STOP
from deploy.progress import step, warn

CHECK_S = 1.0  # seconds between two checks of a watched server
LASTS_MIN = 365 * 24 * 60  # minutes that a token must last at least: a server may run for a year
WATCHER = "run.pid"  # in a node's folder: the id of the process that watches the node

T = TypeVar("T")


def on_all(call: Callable[[LocalNode], T], nodes: Sequence[LocalNode]) -> list[T]:
    """Call a function for all nodes in parallel; for one in this thread, where a signal interrupts it."""
    if len(nodes) == 1:
        return [call(nodes[0])]
    with ThreadPoolExecutor(len(nodes)) as pool:
        return [*pool.map(call, nodes)]


def start_node(local: LocalNode) -> None:
    """Start a node unless it runs, and register the models that it served."""
    with lock(local.folder / "lock"):  # the gateway's supervisor starts nodes, too
        server, record = local.server, Record(local)
        if server.is_ending():
            server.stop()  # the process that stopped it may have ended before
        # So may the process that started it.
        if server.pid() is not None and not server.wait_answer() and (pid := server.pid()) is not None:
            raise ServerError(f"{local.title}: process {pid} does not answer; run `{STOP}`")
        if server.pid() is not None:
            server.authorize()
            # The process that started it may have ended before all models were restored.
            pending = record.read_pending()
        else:
            if (death := server.describe_death()) is not None:
                warn(f"{local.title}: {death}", "It is started again.")
            pending = record.begin()
            if record.is_damaged:
                reason = "it restores an older record; later changes are lost: register what is missing again"
                warn(f"{local.title}: the snapshots of its models are not readable, as after a power cut", reason)
            with step(f"{local.title}: starting"):
                server.start()
            if server.settings.has_tokens and server.settings.token_min < LASTS_MIN:
                words = f"token_expiration_min={server.settings.token_min:g}: then the gateway reaches no model."
                warn(f"{local.title}: {words}", "Nothing renews tokens: set ten years, 5256000, and restart.")
        lost = []
        if server.settings.has_model_api:  # without the model API the configuration names all models
            for each, (line, reason) in zip(pending, restore(local, pending), strict=True):
                say(line)
                lost += [replace(each, lost=reason)] if reason else []
        record.finish(lost)  # the gateway answers 503 for a lost version, and the next start tries it again


def stop_node(local: LocalNode, *, is_for_good: bool) -> bool:
    """End a node's TorchServe and its requests; `is_for_good` removes its record unless a process watches it."""
    # No start begins meanwhile; one that has begun is interrupted, and fails.
    with lock(local.folder / "lock", is_awaited=False):

        def forget() -> None:
            if is_for_good and find_watcher(local) is None:
                Record(local).remove()

        return local.server.stop(forget)


def clean_up(local: LocalNode) -> None:
    """Clean up after a server that has died; its record keeps the fingerprints of what it had unpacked."""
    Record(local).keep()
    local.server.clean_up()


def watch_node(local: LocalNode, is_stopped: threading.Event) -> None:
    """Wait until `is_stopped` is set or the node has ended."""
    with hold_pid_file(local.folder / WATCHER):
        while not is_stopped.wait(CHECK_S) and local.server.pid() is not None:
            pass
        if (death := local.server.describe_death()) is not None:
            clean_up(local)
            raise ServerError(f"{local.title}: {death}")


def find_watcher(local: LocalNode) -> int | None:
    """Return the id of the process that watches a node (`python -m deploy.nodes.run run`); None without one."""
    return find_holder(local.folder / WATCHER)
