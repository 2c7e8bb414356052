"""Commands that start, watch, drain and stop the TorchServes of this machine."""

import argparse
import sys
from pathlib import Path

from deploy.archives.archive import ArchiverFailed
from deploy.archives.sources import WeightsUnavailable
from deploy.command import CommandParser, number, run_command
from deploy.models import ROOT
from deploy.nodes.run import ServerError, serve
from deploy.nodes.run.lifecycle import stop_node, watch_node
from deploy.nodes.run.machine import FOLDER, all_nodes
from deploy.nodes.run.processes import Ending
from deploy.rooms import open_room
from handlers.errors import InvalidConfig
from torchserve_client.errors import ManagementError

GATEWAY = open_room("gateway")  # deploy.gateway.drain; None without a gateway, which only a stop and two commands need
INTERRUPTED = 130  # the exit status of a command that a signal has ended


def start(options: argparse.Namespace) -> None:
    """Start all nodes, register models, and print one prediction or the commands that predict (make serve)."""
    layout = serve.choose_layout(serve.find_config(options.config), options.node_count, options.state_dir)
    nodes = serve.lay_out(layout, options.state_dir)
    serve.start(nodes, is_own=layout.config.resolve().parent != ROOT)
    serve.list_nodes(nodes, options.state_dir)
    for node in nodes if GATEWAY else ():
        GATEWAY.undrain_local(node, options.gateway_config)


def run(options: argparse.Namespace) -> None:
    """Run one node in the foreground until a SIGTERM, which drains and stops it (for systemd)."""
    layout = serve.choose_layout(serve.find_config(options.config), options.node_count, options.state_dir)
    if layout.nodes > 1 and options.node is None:
        raise ServerError(f"run watches one node, and there are {layout.nodes}: name it with --node")
    nodes = {each.name: each for each in serve.lay_out(layout, options.state_dir)}
    if (node := nodes.get(options.node or "node-1")) is None:
        raise ServerError(f"no node {options.node}: there are {', '.join(nodes)}")
    ending = options.ending
    node.server.is_owned = True
    try:
        with ending.interrupting():
            serve.start_one(node)
            serve.list_nodes([*nodes.values()], options.state_dir)
            if GATEWAY:
                GATEWAY.undrain_local(node, options.gateway_config)
    except KeyboardInterrupt:
        stop_node(node, is_for_good=False)
        return
    watch_node(node, ending.is_asked)
    if ending.is_asked.is_set():
        if GATEWAY:
            GATEWAY.drain_local(node, options.gateway_config)
        stop_node(node, is_for_good=False)


def status(options: argparse.Namespace) -> None:
    """Print whether each node runs, its process and its URL."""
    nodes = all_nodes(serve.find_config(options.config), options.state_dir)
    for each in [each for each in nodes if not each.is_single or each.server.pid()] or nodes[:1]:
        pid, server = each.server.pid(), each.server
        state = f"process {pid}, {server.settings.inference_url}" if pid else server.describe_death() or "not running"
        print(f"{each.title}: {state}")


def stop(options: argparse.Namespace) -> None:
    """Stop the gateway in front of this machine's nodes after its last response, then all nodes (make stop)."""
    config = serve.find_config(options.config)
    all_nodes(config, options.state_dir)  # a wrong configuration ends nothing
    if GATEWAY and options.state_dir.resolve() == FOLDER.resolve():  # of nodes in another folder it is not known
        GATEWAY.stop_gateway()
    serve.stop(config, options.state_dir)


def make_parser() -> CommandParser:
    parser = CommandParser(
        prog="torchserve-batching",
        description="Start, watch, drain and stop the TorchServes of this machine.",
        examples=["torchserve-batching start --config production --node-count 4", "torchserve-batching stop"],
    )
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    examples = {
        "start": ["start --config production", "start --node-count 4"],
        "run": ["run --config production", "run --node-count 4 --node node-2"],
        "status": ["status", "status --config production"],
        "stop": ["stop", "stop --config production"],
        **(GATEWAY.EXAMPLES if GATEWAY else {}),
    }
    for command in (start, run, status, stop, *(GATEWAY.COMMANDS if GATEWAY else ())):
        name, words = command.__name__, (command.__doc__ or "").partition("\n")[0]
        lines = [f"{parser.prog} {each}" for each in examples[name]]
        added = commands.add_parser(name, help=words, description=words, examples=lines)
        added.set_defaults(function=command)
        files = added.add_argument_group("configuration")
        default = str(serve.default_config())
        words = "name or path of a config.properties; default: config.properties"
        files.add_argument("--config", default=default, metavar="NAME|PATH", help=words)
        words = "folder of the nodes' files; default: .nodes"
        files.add_argument("--state-dir", type=Path, default=FOLDER, metavar="PATH", help=words)
        group = added.add_argument_group("nodes")
        if command in (start, run):
            words = "number of nodes that share this machine; default: the running number, or 1"
            group.add_argument("--node-count", type=number(int, 1), metavar="N", help=words)
        if command is run:
            group.add_argument("--node", metavar="NAME", help="node to run, node-1 to node-N; default: node-1")
        if GATEWAY:
            GATEWAY.add_options(command, files, group)
    return parser


def main(arguments: list[str]) -> int:
    options = make_parser().parse_args(arguments)
    options.ending = ending = Ending()
    ending.install()

    def execute() -> None:
        if options.function is run:
            run(options)
            return
        with ending.interrupting():
            options.function(options)

    failures = (ServerError, ManagementError, WeightsUnavailable, InvalidConfig, ArchiverFailed, OSError)
    try:
        return run_command(options.command, execute, *failures)
    except KeyboardInterrupt:
        print(f"{options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
