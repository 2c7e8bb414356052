"""Takes a node out of service without losing a request, by Envoy's count of its requests in flight.

take_out:      the gateway sends it no new requests -> a moment -> none is in flight
drain_local:   take_out for a node of this machine after a SIGTERM; undrain_local undoes it
wait_idle:     the wait of both, and of a node in a container, whose own Envoy counts
COMMANDS:      drain and restart of `python -m deploy.nodes.run`
"""

import argparse
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import sleep

from deploy.command import say
from deploy.gateway.settings import CONFIG, STATE_DIR, GatewaySettings, read_settings
from deploy.nodes.run import ServerError, serve
from deploy.nodes.run.lifecycle import find_watcher, stop_node
from deploy.nodes.run.machine import LocalNode, all_nodes
from deploy.nodes.run.node import RESTARTING, reachable_host
from deploy.nodes.run.processes import hold_pid_file, wait_until
from torchserve_client.arguments import duration_s
from torchserve_client.errors import ManagementError, Unreachable
from torchserve_client.gateway import MOMENT_S, Gateway

# Seconds in which the gateway and Envoy notice a node that is READY again: a few polls each, on a slow machine.
ROUTED_S = 60.0
RESTART_PID = "restart.pid"
MARK = "drained"  # a file in the node's folder: the node drained itself, and no operator drained it


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
        return 1  # the control process or Envoy does not answer: an unknown count is not idle

    def report(words: str) -> None:
        say(f"{name}: {words}")

    return not wait_idle(count_in_flight, report, notice_s=MOMENT_S, limit_s=limit_s)


def find_name(gateway: Gateway, local: LocalNode) -> str:
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
        say(f"{local.title}: no gateway runs: its requests in flight are cut off")
    except ManagementError as error:
        say(error.message)


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
        say(f"{local.title}: still drained: {error.message}; run torchserve-batching drain NODE --undo")


def drain(options: argparse.Namespace) -> None:
    """Send a node no new requests, wait for its last response, and stop it."""
    name: str = options.target
    settings = read_settings(options.gateway_config)
    gateway = connect(settings)
    if options.undo:
        gateway.drain(name, is_draining=False)
        (options.state_dir / name / MARK).unlink(missing_ok=True)
        say(f"{name}: receives requests again")
        return
    management = gateway.node(name).management
    if not take_out(gateway, name, settings.limits.response_s if options.timeout is None else options.timeout):
        raise ServerError(f"{name} stays drained, and is not stopped")
    if options.keep:
        return
    local = next((each for each in find_running(options) if each.node().management == management), None)
    if local is None:
        say(f"{name}: not on this machine; it is not stopped")
    elif (watcher := find_watcher(local)) is not None:
        say(f"{name}: process {watcher} watches it; stop that process by its supervisor, such as systemctl")
    else:
        stop_node(local, is_for_good=False)
        say(f"{name}: stopped; after its next start run: torchserve-batching drain {name} --undo")


def restart(options: argparse.Namespace) -> None:
    """Drain, stop and start each node of this machine, one after the other; no request is lost."""
    with hold_pid_file(options.state_dir / RESTART_PID):  # two would take out two nodes
        _restart(options)


def _restart(options: argparse.Namespace) -> None:
    settings = read_settings(options.gateway_config)
    gateway = connect(settings)
    every = all_nodes(serve.find_config(options.config), options.state_dir)
    # First a node of which a restart was killed: others may not be taken out before it serves again.
    begun = [each for each in every if (each.folder / RESTARTING).exists()]
    nodes = [*begun, *(each for each in every if each not in begun and each.server.pid() is not None)]
    if not nodes:
        raise ServerError("no node of this machine runs")
    for local in nodes:
        name, mark = find_name(gateway, local), local.folder / RESTARTING
        if (watcher := find_watcher(local)) is not None:
            raise ServerError(f"{name} is not restarted: process {watcher} watches it; systemctl restart drains it too")
        others = {node.name: node.is_routed for node in gateway.nodes() if node.name != name}
        if local not in begun and (not others or not all(others.values())):
            lacking = ", ".join(other for other, is_routed in others.items() if not is_routed)
            words = f"{lacking} would not serve" if lacking else "no other node would serve"
            raise ServerError(f"{name} is not restarted: {words} in its place")
        mark.touch()
        if local.server.pid() is not None and not take_out(gateway, name, settings.limits.response_s):
            gateway.drain(name, is_draining=False)
            mark.unlink()
            raise ServerError(f"{name} is not restarted, and receives requests again: it still has requests in flight")
        stop_node(local, is_for_good=False)
        say(f"{name}: stopped")
        serve.start_one(local)
        gateway.drain(name, is_draining=False)
        wait_routed(gateway, name)
        mark.unlink()
        say(f"{name}: receives requests again")


def stop_gateway() -> None:
    """End the gateway of this machine after its last response, if it runs."""
    main = import_module("deploy.gateway.__main__")  # it imports this module
    if main.stop(argparse.Namespace(config=CONFIG, state_dir=STATE_DIR)):
        say("gateway: stopped")


def find_running(options: argparse.Namespace) -> list[LocalNode]:
    nodes = all_nodes(serve.find_config(options.config), options.state_dir)
    return [each for each in nodes if each.server.pid() is not None]


def add_options(command: object, files: argparse._ArgumentGroup, nodes: argparse._ArgumentGroup) -> None:
    """Add the options of a command of `python -m deploy.nodes.run` that concern the gateway."""
    words = "settings of the gateway; default: deploy/gateway.yaml"
    files.add_argument("--gateway-config", type=Path, default=CONFIG, metavar="PATH", help=words)
    if command is drain:
        nodes.add_argument("target", metavar="NODE", help="name of the node in the gateway, such as node-2")
        nodes.add_argument("--undo", action="store_true", help="send it requests again")
        nodes.add_argument("--keep", action="store_true", help="keep it running after the drain")
        words = "maximum wait for its responses, such as 300 or 5m; default: limits.response_s of the gateway"
        nodes.add_argument("--timeout", type=duration_s, metavar="T", help=words)


COMMANDS = (drain, restart)
EXAMPLES = {
    "drain": ["drain node-2 --timeout 5m", "drain node-2 --undo"],
    "restart": ["restart", "restart --gateway-config my/gateway.yaml"],
}
