"""Commands that start, watch, drain and stop the TorchServes of this machine."""

import argparse
import signal
import sys
import threading
from pathlib import Path

from deploy.archives.archive import ArchiverFailed
from deploy.archives.sources import WeightsUnavailable
from deploy.command import CommandParser, run_command
from deploy.gateway.drain import MARK, connect, drain_local, find_name, take_out, undrain_local, wait_routed
from deploy.gateway.settings import CONFIG, read_settings
from deploy.models import ROOT
from deploy.run import serve
from deploy.run.errors import ServerError
from deploy.run.lifecycle import find_watcher, stop_node, watch_node
from deploy.run.machine import FOLDER, LocalNode, all_nodes
from handlers.errors import InvalidConfig
from torchserve_client.errors import ManagementError

RENAMED = {"--nodes": "--node-count"}


def start(options: argparse.Namespace) -> None:
    """Start all nodes, register models, and print one prediction or the commands that predict (make serve)."""
    layout = serve.choose_layout(serve.find_config(options.config), options.node_count, options.folder)
    nodes = serve.prepare(layout, options.folder)
    serve.start(nodes, is_own=layout.config.resolve().parent != ROOT)
    for node in nodes:
        undrain_local(node, options.gateway_config)


def run(options: argparse.Namespace) -> None:
    """Run one node in the foreground until a SIGTERM, which drains and stops it (for systemd)."""
    layout = serve.choose_layout(serve.find_config(options.config), options.node_count, options.folder)
    if layout.nodes > 1 and options.node is None:
        raise ServerError(f"run watches one node, and there are {layout.nodes}: name it with --node")
    nodes = {each.name: each for each in serve.prepare(layout, options.folder)}
    if (node := nodes.get(options.node or "node-1")) is None:
        raise ServerError(f"no node {options.node}: there are {', '.join(nodes)}")
    serve.start_one(node)
    undrain_local(node, options.gateway_config)
    is_stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_stopped.set())
    watch_node(node, is_stopped)
    if is_stopped.is_set():
        drain_local(node, options.gateway_config)
        stop_node(node, is_for_good=False)


def status(options: argparse.Namespace) -> None:
    """Print whether each node runs, its process and its URL."""
    nodes = all_nodes(serve.find_config(options.config), options.folder)
    for each in [each for each in nodes if not each.is_single or each.server.pid()] or nodes[:1]:
        pid, server = each.server.pid(), each.server
        state = f"process {pid}, {server.settings.inference_url}" if pid else server.describe_death() or "not running"
        print(f"{each.title}: {state}")


def stop(options: argparse.Namespace) -> None:
    """Stop all nodes (make stop, after the gateway has ended)."""
    serve.stop(serve.find_config(options.config), options.folder)


def drain(options: argparse.Namespace) -> None:
    """Send a node no new requests, wait for its last response, and stop it."""
    name: str = options.target
    settings = read_settings(options.gateway_config)
    gateway = connect(settings)
    if options.undo:
        gateway.drain(name, is_draining=False)
        (options.folder / name / MARK).unlink(missing_ok=True)
        print(f"{name}: receives requests again")
        return
    management = gateway.node(name).management
    if not take_out(gateway, name, settings.limits.response_s if options.timeout is None else options.timeout):
        raise ServerError(f"{name} stays drained, and is not stopped")
    if options.keep:
        return
    local = next((each for each in find_running(options) if each.node().management == management), None)
    if local is None:
        print(f"{name}: not on this machine; it is not stopped")
    elif (watcher := find_watcher(local)) is not None:
        print(f"{name}: process {watcher} watches it; stop that process by its supervisor, such as systemctl")
    else:
        stop_node(local, is_for_good=False)
        print(f"{name}: stopped; after its next start run: torchserve-batching drain {name} --undo")


def restart(options: argparse.Namespace) -> None:
    """Drain, stop and start each node of this machine, one after the other; no request is lost."""
    settings = read_settings(options.gateway_config)
    gateway = connect(settings)
    nodes = find_running(options)
    if not nodes:
        raise ServerError("no node of this machine runs")
    for local in nodes:
        name = find_name(gateway, local)
        if (watcher := find_watcher(local)) is not None:
            raise ServerError(f"{name} is not restarted: process {watcher} watches it; systemctl restart drains it too")
        others = {node.name: node.is_routed for node in gateway.nodes() if node.name != name}
        if not others or not all(others.values()):
            lacking = ", ".join(other for other, is_routed in others.items() if not is_routed) or "no other node"
            raise ServerError(f"{name} is not restarted: {lacking} would not serve in its place")
        if not take_out(gateway, name, settings.limits.response_s):
            gateway.drain(name, is_draining=False)
            raise ServerError(f"{name} is not restarted, and receives requests again: it still has requests in flight")
        stop_node(local, is_for_good=False)
        print(f"{name}: stopped", flush=True)
        serve.start_one(local)
        gateway.drain(name, is_draining=False)
        wait_routed(gateway, name)
        print(f"{name}: receives requests again", flush=True)


def find_running(options: argparse.Namespace) -> list[LocalNode]:
    nodes = all_nodes(serve.find_config(options.config), options.folder)
    return [each for each in nodes if each.server.pid() is not None]


def make_parser() -> CommandParser:
    parser = CommandParser(
        prog="torchserve-batching",
        description="Start, watch, drain and stop the TorchServes of this machine.",
        examples=["torchserve-batching start --config production --node-count 4", "torchserve-batching drain node-2"],
        renamed=RENAMED,
    )
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    examples = {
        "start": ["start --config production", "start --node-count 4"],
        "run": ["run --config production", "run --node-count 4 --node node-2"],
        "status": ["status", "status --config production"],
        "stop": ["stop", "stop --config production"],
        "drain": ["drain node-2 --timeout 300", "drain node-2 --undo"],
        "restart": ["restart", "restart --gateway-config my/gateway.yaml"],
    }
    for command in (start, run, status, stop, drain, restart):
        name, words = command.__name__, (command.__doc__ or "").partition("\n")[0]
        lines = [f"{parser.prog} {each}" for each in examples[name]]
        added = commands.add_parser(name, help=words, description=words, examples=lines)
        added.set_defaults(function=command)
        files = added.add_argument_group("configuration")
        default = str(serve.default_config())
        words = "name or path of a config.properties; default: config.properties"
        files.add_argument("--config", default=default, metavar="NAME|PATH", help=words)
        words = "folder of the nodes' files; default: .nodes"
        files.add_argument("--folder", type=Path, default=FOLDER, metavar="PATH", help=words)
        words = "settings of the gateway; default: deploy/gateway.yaml"
        files.add_argument("--gateway-config", type=Path, default=CONFIG, metavar="PATH", help=words)
        group = added.add_argument_group("nodes")
        if command in (start, run):
            words = "number of nodes that share this machine; default: the running number, or 1"
            group.add_argument("--node-count", type=_positive, metavar="N", help=words)
        if command is run:
            group.add_argument("--node", metavar="NAME", help="node to run, node-1 to node-N; default: node-1")
        if command is drain:
            group.add_argument("target", metavar="NODE", help="name of the node in the gateway, such as node-2")
            group.add_argument("--undo", action="store_true", help="send it requests again")
            group.add_argument("--keep", action="store_true", help="keep it running after the drain")
            words = "wait at most S seconds for its responses; default: limits.response_s of the gateway"
            group.add_argument("--timeout", type=float, metavar="S", help=words)
    return parser


def main(arguments: list[str]) -> int:
    options = make_parser().parse_args(arguments)
    name = "serve" if options.command in ("start", "run", "stop") else options.command
    failures = (ServerError, ManagementError, WeightsUnavailable, InvalidConfig, ArchiverFailed, OSError)
    return run_command(name, lambda: options.function(options), *failures)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected an integer of 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
