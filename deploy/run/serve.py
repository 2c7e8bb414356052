"""`make serve` and `make stop`: archives, nodes, models, and one prediction or the calls to make.

config.properties             -> development: archives built -> nodes started -> registered -> one prediction
config.production.properties  -> production:  archives there -> nodes started -> READY      -> how to call them
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.models import ROOT
from deploy.run import development, production
from deploy.run.machine import Layout, LocalNode, everything, local_nodes, reachable
from deploy.run.node import NODES, write
from deploy.run.nodes import start_node, stop_node, watcher
from deploy.run.server import ServerError
from torchserve_client.management import ManagementError


def config_of(text: str) -> Path:
    """Find a configuration by the name that `make serve CONFIG=` takes, or by its path.

    Raises:
        ServerError: there is none.
    """
    for path in (ROOT / f"config.{text}.properties", Path(text)):
        if path.is_file():
            return path
    names = sorted(path.name.split(".")[1] for path in ROOT.glob("config.*.properties"))
    raise ServerError(f"no configuration {text}: CONFIG is a path, or one of {', '.join(names)}")


def layout_of(config: Path, nodes: int | None, folder: Path) -> Layout:
    """Return the layout to run: the requested one, or the one that runs.

    Args:
        config: the configuration that is asked for.
        nodes: how many; None for as many as run, or one.
        folder: of the nodes.

    Raises:
        ServerError: something else runs.
    """
    alone, *several = [each.server for each in everything(config, folder)]
    if (other := alone.config_of_running()) not in (None, config.resolve()):
        raise ServerError(f"TorchServe is already running with {other} (process {alone.pid()}); run `make stop`")
    if alone.pid() is not None and (nodes or 1) > 1:
        raise ServerError(f"a TorchServe runs alone, process {alone.pid()}, with all of the machine: make stop ends it")
    last = Layout.read(folder)
    if last is not None and any(server.pid() is not None for server in several):
        if last.config != config.resolve() or nodes not in (None, last.nodes):
            raise ServerError(f"{last.nodes} nodes run with {last.config}: make stop ends them")
        return last
    return Layout(config, nodes or 1)


def prepare(layout: Layout, folder: Path) -> list[LocalNode]:
    """Write down what is to run, for the gateway and for later commands, and return its nodes.

    Raises:
        ServerError: there is no room for them, or the gateway could not reach them.
    """
    nodes = local_nodes(layout, folder)
    layout.write(folder)
    write(reachable(nodes), folder / NODES.name)
    return nodes


def start(nodes: Sequence[LocalNode]) -> None:
    """Start nodes until they answer predictions, and print one, or how to ask for it; what runs is used as it is.

    Raises:
        ServerError: something is not as it should be. What this call has started is stopped again where the
            configuration names its models; where they are registered, what is served so far is served on.
    """
    for node in nodes:
        # Before archives are built. The ports of one that has died may be free only once its workers have ended.
        is_new = node.server.pid() is None and node.server.died() is None
        if is_new and (problem := node.server.obstacle()) is not None:
            raise ServerError(f"{node.title}: {problem}")
    try:
        if nodes[0].server.settings.has_model_api:
            development.start(nodes)
        else:
            production.start(nodes)
    except (ServerError, ManagementError, OSError) as error:
        deaths = [f"{each.title}: {death}" for each in nodes if (death := each.server.died()) is not None]
        raise ServerError("; ".join([str(error), *deaths])) from None


def bring_up(node: LocalNode) -> None:
    """Start one node, with what its configuration names, or with what was registered before.

    Raises:
        ServerError, ManagementError: it does not come up.
    """
    if node.server.settings.has_model_api:
        start_node(node)
    else:
        production.prove(node)


def stop(config: Path, folder: Path) -> None:
    """End every node of this machine, and print a line for each; also where one has ended by itself.

    Args:
        config: of the server that is alone.
        folder: of the nodes.
    """
    every = everything(config, folder)
    running = [each for each in every if each.server.pid() is not None or each.server.died() is not None]
    with ThreadPoolExecutor(max(1, len(running))) as pool:
        for line in pool.map(_stop, running):
            print(line)
    if not running:
        print(f"{every[0].title}: not running")
    (folder / NODES.name).unlink(missing_ok=True)


def _stop(local: LocalNode) -> str:
    death = local.server.died()
    was_running = stop_node(local, is_for_good=True)
    line = f"{local.title}: {'stopped' if was_running else 'not running'}"
    if death is not None:
        local.server.forget()
        line += f", {death}"
    if (watched := watcher(local)) is not None:
        line += f"; process {watched} watches it, and whoever started that one may start it again"
    return line
