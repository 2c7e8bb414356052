"""Nodes whose configuration names their models: started, each model proven READY, and how to call them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from deploy.models import ROOT
from deploy.run import production
from deploy.run.machine import Local
from deploy.run.production import Named
from deploy.run.running import record_of, run_node
from deploy.run.server import ServerError
from deploy.run.waits import Waits, banner

# What prints the key, where it must not be printed itself.
KEY = '$(.venv/bin/python -c \'import json; print(json.load(open("{}"))["inference"]["key"])\')'


def start(nodes: Sequence[Local], waits: Waits, *, is_logged: bool) -> None:
    """Start nodes, prove that they serve what is named, and print how to call it.

    Args:
        nodes: running or not, all of one configuration.
        waits: says what is waited for.
        is_logged: whether what is printed ends in a log, where no key may be.

    Raises:
        ServerError: something is not as it should be. The nodes that this call has started are stopped again.
    """
    named = [_named(node) for node in nodes]
    new = [node for node in nodes if node.server.pid() is None]
    try:
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(lambda node: prove(node, waits), nodes))
    except BaseException:
        for node in new:
            # What died is left as it is, for whoever says of what.
            with suppress(ServerError):
                node.server.stop()
            record_of(node).forget()
        raise
    for node, models in zip(nodes, named, strict=True):
        for each in models:
            print(f"{'' if node.is_alone else f'{node.name}: '}{each.name}: READY, version {each.version}")
    if untrained := [each.name for each in named[0] if each.is_untrained]:
        banner(f"{', '.join(untrained)}: RANDOM weights: the answers mean nothing.")
    for node, models in zip(nodes, named, strict=True):
        key = node.server.key("inference")
        for line in production.calls(node.server, models, KEY.format(_shown(node)) if key and is_logged else key):
            print(f"\n$ {line}")


def prove(node: Local, waits: Waits) -> None:
    """Start a node unless it runs, and wait until all that is named is READY.

    Raises:
        ServerError: something is not as it should be.
    """
    models = _named(node)
    printed = production.logs(node.server, models)
    run_node(node, waits)
    names = ", ".join(model.name for model in models)
    with waits.on(f"{names}: waiting for workers" if node.is_alone else f"{node.name}: {names}: waiting for workers"):
        production.prove(node.server, models, printed)
    if node.server.settings.has_tokens and not node.server.key("inference"):
        raise ServerError(f"{node.server.keys} has no key: calls need one")


def _named(node: Local) -> list[Named]:
    return production.named(node.server.settings, node.server.directory / node.server.settings.model_store)


def _shown(node: Local) -> Path:
    keys = node.server.keys
    return keys.relative_to(ROOT) if keys.is_relative_to(ROOT) else keys
