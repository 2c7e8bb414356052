"""Takes a node out without losing a request: it gets nothing new, and Envoy has nothing of it in flight any more.

    take_out:  the gateway sends it nothing new -> a moment -> Envoy's count of its requests in flight is 0
    leave:     the same for a node of this machine that got a SIGTERM; come_back undoes it
    wait_idle: the wait of both, and of a node in a container, whose own Envoy counts

Requests that clients send straight to a node's port are not counted.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from deploy.gateway.settings import Settings, reached, read
from deploy.run.machine import LocalNode
from deploy.run.server import ServerError
from torchserve_client.errors import ManagementError, Unreachable
from torchserve_client.gateway import MOMENT_S, Gateway

LOOK_S = 0.1
# Seconds in which the gateway and Envoy find what a node that is back serves: a few looks each, on a slow machine.
ROUTED_S = 60.0
# The file that says that the node took itself out, and no operator did.
MARK = "drained"


def control(settings: Settings) -> Gateway:
    """Return a client of this machine's gateway."""
    host = reached(settings.ports.control_address)
    return Gateway(f"http://{f'[{host}]' if ':' in host else host}:{settings.ports.control}")


def wait_idle(in_flight: Callable[[], int], say: Callable[[str], None], *, notice_s: float, limit_s: float) -> int:
    """Wait at most `limit_s` until a node has no request in flight; return how many were given up."""
    time.sleep(notice_s)
    deadline = time.monotonic() + limit_s
    if count := in_flight():
        say(f"{count} requests are in flight; at most {limit_s:g} s")
    while count and time.monotonic() <= deadline:
        time.sleep(LOOK_S)
        count = in_flight()
    say(f"{count} requests have no answer after {limit_s:g} s" if count else "the last answer is out")
    return count


def take_out(gateway: Gateway, name: str, limit_s: float) -> bool:
    """Send a node nothing new, wait at most `limit_s` for its responses; return whether all were sent.

    Raises:
        ManagementError: the gateway does not know it, or does not answer.
    """
    gateway.drain(name)

    def in_flight() -> int:
        with suppress(Unreachable):
            if (count := gateway.node(name).in_flight) is not None:
                return count
        # The control process or Envoy does not answer: what is not known is not answered.
        return 1

    return not wait_idle(
        in_flight, lambda words: print(f"{name}: {words}", flush=True), notice_s=MOMENT_S, limit_s=limit_s
    )


def name_of(gateway: Gateway, local: LocalNode) -> str:
    """Return what the gateway calls a node of this machine.

    Raises:
        ManagementError: it has none with that address.
    """
    own = local.node().management
    for node in gateway.nodes():
        if node.management == own:
            return node.name
    raise ManagementError(f"{local.title}: the gateway has no node at {own}", status=404)


def wait_routed(gateway: Gateway, name: str) -> None:
    """Wait until a node that is back gets requests.

    Raises:
        ServerError: it does not, though its models are READY.
    """
    deadline = time.monotonic() + ROUTED_S
    while not gateway.node(name).is_routed:
        if time.monotonic() > deadline:
            raise ServerError(f"{name} gets no requests after {ROUTED_S:g} s: the gateway does not find it READY")
        time.sleep(LOOK_S)


def leave(local: LocalNode, config: Path) -> None:
    """Take a node of this machine out before it is stopped, where a gateway (gateway.yaml: `config`) is in front of it.

    Raises:
        InvalidConfig, OSError: `config` cannot be read.
    """
    settings = read(config)
    gateway = control(settings)
    try:
        name = name_of(gateway, local)
        if not gateway.node(name).is_draining:
            (local.folder / MARK).touch()
            take_out(gateway, name, settings.limits.response_s)
    except Unreachable:
        print(f"{local.title}: no gateway runs: what it has in hand is cut off")
    except ManagementError as error:
        print(error.message)


def come_back(local: LocalNode, config: Path) -> None:
    """Let a node that `leave` took out get requests again."""
    mark = local.folder / MARK
    if not mark.exists():
        return
    gateway = control(read(config))
    try:
        gateway.drain(name_of(gateway, local), is_draining=False)
        mark.unlink()
    except ManagementError as error:
        print(f"{local.title}: taken out, and not put back: {error.message}; drain --undo does it")
