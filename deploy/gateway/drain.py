"""Takes a node out of service without losing a request, by Envoy's count of its requests in flight.

    take_out:      the gateway sends it no new requests -> a moment -> none is in flight
    drain_local:   take_out for a node of this machine after a SIGTERM; undrain_local undoes it
    wait_idle:     the wait of both, and of a node in a container, whose own Envoy counts

Requests that clients send to a node's own port are not counted.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import sleep

from deploy.gateway.settings import GatewaySettings, read_settings
from deploy.run.errors import ServerError
from deploy.run.machine import LocalNode
from deploy.run.node import reachable_host
from deploy.run.processes import wait_until
from torchserve_client.errors import ManagementError, Unreachable
from torchserve_client.gateway import MOMENT_S, Gateway

# Seconds in which the gateway and Envoy notice a node that is READY again: a few polls each, on a slow machine.
ROUTED_S = 60.0
# A file in the node's folder: the node drained itself, and no operator drained it.
MARK = "drained"


def connect(settings: GatewaySettings) -> Gateway:
    """Return a client of the control API of this machine's gateway."""
    host = reachable_host(settings.ports.control_address)
    return Gateway(f"http://{f'[{host}]' if ':' in host else host}:{settings.ports.control}")


def wait_idle(
    count_in_flight: Callable[[], int], report: Callable[[str], None], *, notice_s: float, limit_s: float
) -> int:
    """Wait at most `limit_s` until a node has no request in flight; return the number of unanswered requests."""
    sleep(notice_s)
    if count := count_in_flight():
        report(f"{count} requests are in flight; at most {limit_s:g} s")

        def is_idle() -> bool:
            nonlocal count
            count = count_in_flight()
            return count == 0

        wait_until(is_idle, limit_s)
    report(f"{count} requests have no response after {limit_s:g} s" if count else "the last response is sent")
    return count


def take_out(gateway: Gateway, name: str, limit_s: float) -> bool:
    """Send a node no new requests, wait at most `limit_s` for its responses; return whether all were sent."""
    gateway.drain(name)

    def count_in_flight() -> int:
        with suppress(Unreachable):
            if (count := gateway.node(name).in_flight) is not None:
                return count
        # The control process or Envoy does not answer: an unknown count is not idle.
        return 1

    def report(words: str) -> None:
        print(f"{name}: {words}", flush=True)

    return not wait_idle(count_in_flight, report, notice_s=MOMENT_S, limit_s=limit_s)


def find_name(gateway: Gateway, local: LocalNode) -> str:
    """Return the gateway's name for a node of this machine, or raise ManagementError."""
    own = local.node().management
    for node in gateway.nodes():
        if node.management == own:
            return node.name
    raise ManagementError(f"{local.title}: the gateway has no node at {own}", status=404)


def wait_routed(gateway: Gateway, name: str) -> None:
    """Wait until a node receives requests again, or raise ServerError."""
    if not wait_until(lambda: gateway.node(name).is_routed, ROUTED_S):
        raise ServerError(f"{name} receives no requests after {ROUTED_S:g} s: the gateway does not find it READY")


def drain_local(local: LocalNode, config: Path) -> None:
    """Drain a node of this machine before its stop, if the gateway of the settings file `config` is in front of it."""
    settings = read_settings(config)
    gateway = connect(settings)
    try:
        name = find_name(gateway, local)
        if not gateway.node(name).is_draining:
            (local.folder / MARK).touch()
            take_out(gateway, name, settings.limits.response_s)
    except Unreachable:
        print(f"{local.title}: no gateway runs: its requests in flight are cut off")
    except ManagementError as error:
        print(error.message)


def undrain_local(local: LocalNode, config: Path) -> None:
    """Send requests again to a node that `drain_local` drained."""
    mark = local.folder / MARK
    if not mark.exists():
        return
    gateway = connect(read_settings(config))
    try:
        gateway.drain(find_name(gateway, local), is_draining=False)
        mark.unlink()
    except ManagementError as error:
        print(f"{local.title}: still drained: {error.message}; run torchserve-batching drain NODE --undo")
