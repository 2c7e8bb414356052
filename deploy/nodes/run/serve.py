"""`make serve` and `make stop`: archives, nodes, models, and one prediction or the commands that predict.

config.properties             -> development: archive built  -> nodes started -> model registered -> one prediction
config.production.properties  -> production:  archives exist -> nodes started -> models READY     -> how to call them
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.command import say
from deploy.models import ROOT
from deploy.nodes.run import ServerError, development, lifecycle, production
from deploy.nodes.run.lifecycle import find_watcher, start_node, stop_node
from deploy.nodes.run.machine import Layout, LocalNode, all_nodes, local_nodes, reachable_nodes
from deploy.nodes.run.node import NODES, write_nodes
from deploy.places import HOME, STOP
from torchserve_client.management import ManagementError


def find_config(text: str) -> Path:
    """Find a configuration by its name, as in `make serve CONFIG=production`, or by its path."""
    file = f"config.{text}.properties"
    for path in (HOME / file, ROOT / file, Path(text)):
        if path.is_file():
            return path
    names = sorted(path.name.split(".")[1] for path in ROOT.glob("config.*.properties"))
    raise ServerError(f"no configuration {text}: CONFIG is a path, or one of {', '.join(names)}")


def default_config() -> Path:
    own = HOME / "config.properties"
    return own if own.is_file() else ROOT / "config.properties"


def choose_layout(config: Path, nodes: int | None, folder: Path) -> Layout:
    """Return the layout to run: the requested one, or the running one if `nodes` is None."""
    single, *several = [each.server for each in all_nodes(config, folder)]
    pid = single.pid()
    if (other := single.running_config()) not in (None, config.resolve()):
        raise ServerError(f"TorchServe is already running with {other} (pid {pid}); run `{STOP}`")
    if pid is not None and (nodes or 1) > 1:
        raise ServerError(f"a single TorchServe already uses the whole machine (pid {pid}); run `{STOP}`")
    last = Layout.read(folder)
    if last is not None and any(server.pid() is not None for server in several):
        if last.config != config.resolve() or nodes not in (None, last.nodes):
            raise ServerError(f"{last.nodes} nodes are already running with {last.config}; run `{STOP}`")
        return last
    return Layout(config, nodes or 1)


def lay_out(layout: Layout, folder: Path) -> list[LocalNode]:
    """Write the layout, for the gateway and for later commands, and return its nodes."""
    nodes = local_nodes(layout, folder)
    layout.write(folder)
    list_nodes(nodes, folder)
    return nodes


def list_nodes(nodes: Sequence[LocalNode], folder: Path) -> None:
    """Write nodes.json, also after a start: a stop for which the start has waited removes it."""
    write_nodes(reachable_nodes(nodes), folder / NODES.name)


def start(nodes: Sequence[LocalNode], *, is_own: bool = False) -> None:
    """Start missing nodes, wait for predictions, print a summary; nothing is built if the configuration `is_own`."""
    new = [each for each in nodes if each.server.pid() is None]
    for node in new:
        # Before archives are built. The ports of a dead server may be taken until its workers have ended.
        if node.server.describe_death() is None and (problem := node.server.find_obstacle()) is not None:
            raise ServerError(f"{node.title}: {problem}")
    try:
        if nodes[0].server.settings.has_model_api:
            development.start(nodes, is_own=is_own)
        else:
            production.start(nodes)
    except KeyboardInterrupt:
        for node in new:
            stop_node(node, is_for_good=False)
        raise
    except (ServerError, ManagementError, OSError) as error:
        deaths = [f"{each.title}: {death}" for each in nodes if (death := each.server.describe_death()) is not None]
        raise ServerError("; ".join([str(error), *deaths])) from None


def start_one(node: LocalNode) -> None:
    """Start one node with the models of its configuration, or those that were registered before."""
    if node.server.settings.has_model_api:
        production.check_load_models(node.server)
        start_node(node)
    else:
        production.verify(node)


def stop(config: Path, folder: Path) -> None:
    """End every node of this machine, and print a line for each, including those that died."""
    nodes = all_nodes(config, folder)
    running = [each for each in nodes if each.server.pid() is not None or each.server.describe_death() is not None]
    for each in nodes:
        if each not in running and each.server.is_ending():
            stop_node(each, is_for_good=True)  # its stop was killed
    with ThreadPoolExecutor(max(1, len(running))) as pool:
        for line in pool.map(_stop, running):
            say(line)
    if not running:
        say(f"{nodes[0].title}: not running")
    (folder / NODES.name).unlink(missing_ok=True)


def _stop(local: LocalNode) -> str:
    death = local.server.describe_death()
    was_running = stop_node(local, is_for_good=True)
    line = f"{local.title}: {'stopped' if was_running else 'not running'}"
    if death is not None:
        lifecycle.clean_up(local)
        line += f", {death}"
    if (watcher := find_watcher(local)) is not None:
        line += f"; process {watcher} watches it, and may be started again by its own supervisor"
    return line
