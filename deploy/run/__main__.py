"""`make serve` and `make stop`: archive, start, register, and print one prediction; one node or several.

config.properties             -> archives built -> nodes started -> registered -> one prediction
config.production.properties  -> archives there -> nodes started -> READY      -> how to call them
"""

import argparse
import os
import sys
from pathlib import Path

from deploy.archive import ArchiverFailed
from deploy.gateway.departure import Edge, come_back, leave
from deploy.gateway.settings import CONFIG, RUN
from deploy.models import ROOT
from deploy.run import configured, development, drain, restart
from deploy.run.machine import FOLDER, Layout, Local, found, locals_of, nodes_of
from deploy.run.node import write
from deploy.run.running import supervise
from deploy.run.server import Server, ServerError
from deploy.run.share import cores_here, gpus_here, shortage
from deploy.run.stop import stop
from deploy.run.waits import Waits, banner
from deploy.sources import WeightsUnavailable
from handlers.errors import InvalidConfig
from torchserve_client.management import ManagementError


def layout_of(config: Path, nodes: int | None, folder: Path) -> Layout:
    """Settle what is to run: what is asked for, beside what runs.

    Args:
        config: the configuration that is asked for.
        nodes: how many; None for as many as run, or one.
        folder: of the nodes.

    Raises:
        ServerError: something else runs.
    """
    running = {each.name: each.server for each in found(folder) if each.server.pid() is not None}
    alone = Server(config)
    if (other := alone.config_of_running()) not in (None, config.resolve()):
        raise ServerError(f"a TorchServe runs with {other}, process {alone.pid()}: make stop ends it")
    if alone.pid() is not None and (nodes or 1) > 1:
        raise ServerError(f"a TorchServe runs alone, process {alone.pid()}, with all of the machine: make stop ends it")
    last = Layout.read(folder)
    if running and last is not None:
        if last.config != config.resolve() or nodes not in (None, last.nodes):
            raise ServerError(f"{last.nodes} nodes run with {last.config}: make stop ends them")
        return last
    return Layout(config, nodes or 1)


def start(layout: Layout, folder: Path, edge: Edge, only: str | None = None) -> list[Local]:
    """Bring everything from nothing to a prediction; what is there already is used as it is.

    Args:
        layout: what is to run.
        folder: of the nodes.
        edge: the gateway that may stand in front of them.
        only: the one node that is started, by a supervisor; None for all.

    Returns:
        The nodes that run now.

    Raises:
        ServerError: something is not as it should be. What this call has started is stopped again where the
            configuration names its models; where they are registered, what is served so far is served on.
    """
    every = locals_of(layout, folder)
    nodes = [each for each in every if only in (None, each.name)]
    if not nodes:
        raise ServerError(f"no node {only}: there are {', '.join(each.name for each in every)}")
    if (words := shortage(cores_here(), gpus_here(os.environ), layout.nodes)) is not None:
        banner(words)
    layout.write(folder)
    write(nodes_of(every), folder / "nodes.json")
    with Waits() as waits:
        if nodes[0].server.settings.has_model_api:
            development.start(nodes, waits, is_supervised=only is not None)
        else:
            configured.start(nodes, waits, is_logged=only is not None)
    for each in nodes:
        come_back(each, edge)
    return nodes


def config_of(text: str) -> Path:
    """Find a configuration by the name that `make serve CONFIG=` gives, or by its path.

    Raises:
        ServerError: there is none.
    """
    for path in (ROOT / f"config.{text}.properties", Path(text)):
        if path.is_file():
            return path
    names = sorted(path.name.split(".")[1] for path in ROOT.glob("config.*.properties"))
    raise ServerError(f"no configuration {text}: CONFIG is a path, or one of {', '.join(names)}")


def main(arguments: list[str]) -> int:
    """Run a command; 1 with one line when it fails."""
    if arguments[:1] == ["drain"]:
        return drain.main(arguments[1:])
    if arguments[:1] == ["restart"]:
        return restart.main(arguments)
    parser = argparse.ArgumentParser(prog="python -m deploy.run", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=["start", "run", "stop"], help="run stays until the server ends")
    parser.add_argument("--config", default=str(ROOT / "config.properties"), metavar="NAME|PATH")
    parser.add_argument("--nodes", type=_positive, metavar="N", help="how many share this machine; default: 1")
    parser.add_argument("--node", metavar="NAME", help="of run: the one to run, node-1 to node-N")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the nodes; default: .nodes")
    parser.add_argument("--gateway-config", type=Path, default=CONFIG, metavar="PATH", help="gateway.yaml")
    parser.add_argument("--gateway-run", type=Path, default=RUN, metavar="PATH", help="folder that the gateway runs in")
    options = parser.parse_args(arguments)
    edge = Edge(options.gateway_config, options.gateway_run)
    nodes: list[Local] = []
    try:
        config = config_of(options.config)
        if options.command == "stop":
            stop(config, options.folder, edge)
            return 0
        layout = layout_of(config, options.nodes, options.folder)
        only = None
        if options.command == "run":
            if layout.nodes > 1 and options.node is None:
                raise ServerError(f"run watches one node, and there are {layout.nodes}: name it with --node")
            only = options.node or "node-1"
        nodes = [each for each in locals_of(layout, options.folder) if only in (None, each.name)]
        started = start(layout, options.folder, edge, only)
        if only is not None:
            supervise(started[0], lambda local: leave(local, options.folder, edge))
    except (ServerError, ManagementError, WeightsUnavailable, InvalidConfig, ArchiverFailed, OSError) as error:
        deaths = [f"{each.title}: {death}" for each in nodes if (death := each.server.died()) is not None]
        more = [death for death in deaths if death.partition(": ")[2] not in str(error)]
        print("; ".join([f"serve: {error}", *more]), file=sys.stderr)
        return 1
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
