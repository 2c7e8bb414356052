"""Starts, watches, drains and stops the TorchServes of this machine.

start           what `make serve` does: archives, nodes, models, one prediction
run             one node, with what it served before, until it ends: for systemd
stop            what `make stop` does after the gateway has ended
drain NODE      take a node out at the gateway, wait for its last answer, stop it; --keep, --undo
restart         every node of this machine, one after the other, without a lost request
"""

import argparse
import signal
import sys
import threading
from pathlib import Path

from deploy.build.archive import ArchiverFailed
from deploy.build.sources import WeightsUnavailable
from deploy.gateway.drain import MARK, come_back, control, leave, name_of, take_out, wait_routed
from deploy.gateway.settings import CONFIG, read
from deploy.models import ROOT
from deploy.run import serve
from deploy.run.machine import FOLDER, LocalNode, everything
from deploy.run.nodes import stop_node, watch, watcher
from deploy.run.server import ServerError
from handlers.errors import InvalidConfig
from torchserve_client.errors import ManagementError


def start(options: argparse.Namespace) -> None:
    """Start all nodes.

    Raises:
        ServerError: see `serve.start`.
    """
    layout = serve.layout_of(serve.config_of(options.config), options.nodes, options.folder)
    nodes = serve.prepare(layout, options.folder)
    serve.start(nodes)
    for node in nodes:
        come_back(node, options.gateway_config)


def run(options: argparse.Namespace) -> None:
    """Start one node, and stay until a SIGTERM or Ctrl-C, which drain and stop it.

    Raises:
        ServerError: see `serve.bring_up`; or it has died.
    """
    layout = serve.layout_of(serve.config_of(options.config), options.nodes, options.folder)
    if layout.nodes > 1 and options.node is None:
        raise ServerError(f"run watches one node, and there are {layout.nodes}: name it with --node")
    nodes = {each.name: each for each in serve.prepare(layout, options.folder)}
    if (node := nodes.get(options.node or "node-1")) is None:
        raise ServerError(f"no node {options.node}: there are {', '.join(nodes)}")
    serve.bring_up(node)
    come_back(node, options.gateway_config)
    is_told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_told.set())
    watch(node, is_told)
    if is_told.is_set():
        leave(node, options.gateway_config)
        stop_node(node, is_for_good=False)


def stop(options: argparse.Namespace) -> None:
    """End everything that `start` started."""
    serve.stop(serve.config_of(options.config), options.folder)


def drain(options: argparse.Namespace) -> None:
    """Take one node out, or let it get requests again.

    Raises:
        ManagementError: the gateway does not answer, or has no such node.
        ServerError: it has not answered what it has, or cannot be stopped.
    """
    name: str = options.target
    settings = read(options.gateway_config)
    gateway = control(settings)
    if options.undo:
        gateway.drain(name, is_draining=False)
        (options.folder / name / MARK).unlink(missing_ok=True)
        print(f"{name}: gets requests again")
        return
    management = gateway.node(name).management
    if not take_out(gateway, name, settings.limits.response_s if options.timeout is None else options.timeout):
        raise ServerError(f"{name} stays taken out, and is not stopped")
    if options.keep:
        return
    local = next((each for each in running(options) if each.node().management == management), None)
    if local is None:
        print(f"{name}: not of this machine: it runs on")
    elif (watched := watcher(local)) is not None:
        print(f"{name}: process {watched} watches it: stop it by what started that one, such as systemctl")
    else:
        stop_node(local, is_for_good=False)
        print(f"{name}: stopped; python -m deploy.run drain {name} --undo, once it is back, lets it get requests again")


def restart(options: argparse.Namespace) -> None:
    """Restart every node of this machine: out, stopped, started, READY, back.

    Raises:
        ManagementError: the gateway does not answer.
        ServerError: there is nothing to restart, no other node would serve meanwhile, or one does not come back.
    """
    settings = read(options.gateway_config)
    gateway = control(settings)
    nodes = running(options)
    if not nodes:
        raise ServerError("no node of this machine runs")
    for local in nodes:
        name = name_of(gateway, local)
        if (watched := watcher(local)) is not None:
            raise ServerError(f"{name} is left as it is: process {watched} watches it; systemctl restart drains it too")
        others = {node.name: node.is_routed for node in gateway.nodes() if node.name != name}
        if not others or not all(others.values()):
            lacking = ", ".join(other for other, is_routed in others.items() if not is_routed) or "no other node"
            raise ServerError(f"{name} is left as it is: {lacking} would not serve for it")
        if not take_out(gateway, name, settings.limits.response_s):
            gateway.drain(name, is_draining=False)
            raise ServerError(f"{name} is left as it is, and gets requests again: it has not answered what it has")
        stop_node(local, is_for_good=False)
        print(f"{name}: stopped", flush=True)
        serve.bring_up(local)
        gateway.drain(name, is_draining=False)
        wait_routed(gateway, name)
        print(f"{name}: gets requests again", flush=True)


def running(options: argparse.Namespace) -> list[LocalNode]:
    """Return the nodes of this machine that run."""
    every = everything(serve.config_of(options.config), options.folder)
    return [each for each in every if each.server.pid() is not None]


def main(arguments: list[str]) -> int:
    """Run a command; 1 with one line when it fails."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", default=str(ROOT / "config.properties"), metavar="NAME|PATH")
    common.add_argument("--folder", type=Path, default=FOLDER, help="of the nodes; default: .nodes")
    common.add_argument("--gateway-config", type=Path, default=CONFIG, metavar="PATH", help="gateway.yaml")
    for command in (start, run, stop, drain, restart):
        words = (command.__doc__ or "").partition("\n")[0]
        added = commands.add_parser(command.__name__, parents=[common], description=words)
        added.set_defaults(function=command)
        if command in (start, run):
            added.add_argument("--nodes", type=_positive, metavar="N", help="how many share this machine; default: 1")
        if command is run:
            added.add_argument("--node", metavar="NAME", help="the one to run, node-1 to node-N")
        if command is drain:
            added.add_argument("target", metavar="NODE", help="its name, as the gateway has it: node-2")
            added.add_argument("--undo", action="store_true", help="let it get requests again")
            added.add_argument("--keep", action="store_true", help="do not stop it")
            added.add_argument("--timeout", type=float, metavar="S", help="of an answer; default: limits.response_s")
    options = parser.parse_args(arguments)
    try:
        options.function(options)
    except (ServerError, ManagementError, WeightsUnavailable, InvalidConfig, ArchiverFailed, OSError) as error:
        is_serve = options.command in ("start", "run", "stop")
        print(f"{'serve' if is_serve else options.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
