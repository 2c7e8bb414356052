"""`make stop`: everything that `make serve` started, without cutting off an answer.

gateway: accepts nothing more -> its last answers are out -> ended
nodes:   nothing in hand      -> ended, and what they served is forgotten
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from deploy.gateway.departure import HERE, Edge, leave
from deploy.run.machine import FOLDER, Local, everything
from deploy.run.node import NODES
from deploy.run.running import end_node, stopped_words, supervisor


def stop(config: Path, folder: Path = FOLDER, edge: Edge = HERE) -> None:
    """End every node of this machine, and say so; and where one has ended by itself.

    Args:
        config: of the server that is alone.
        folder: of the nodes.
        edge: the gateway that may stand in front of them.
    """
    every = everything(config, folder)
    running = [each for each in every if each.server.pid() is not None or each.server.died() is not None]
    with ThreadPoolExecutor(max(1, len(running))) as pool:
        for line in pool.map(lambda each: _end(each, folder, edge), running):
            print(line)
    if not running:
        print(f"{every[0].title}: not running")
    (folder / NODES.name).unlink(missing_ok=True)


def _end(local: Local, folder: Path, edge: Edge) -> str:
    if local.server.pid() is not None:
        leave(local, folder, edge)
    was_running = end_node(local, lambda words: print(words, flush=True), is_for_good=True)
    line = f"{local.title}: {'stopped' if was_running else stopped_words(local.server)}"
    if (watched := supervisor(local)) is not None:
        line += f"; process {watched} watches it, and whoever started that one may start it again"
    return line
