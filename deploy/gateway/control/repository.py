"""Loads and unloads a model on all nodes, through their management APIs.

    load M   -> each node: POST /models?url=M.mar, or workers for one that has none -> its workers READY
    unload M -> each node: DELETE /models/M/V, the default version last

Every node is tried; what any of them did not do is said of it by name.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from deploy.gateway.control.errors import UNIMPLEMENTED, RequestError
from deploy.gateway.control.gateway import Gateway
from deploy.gateway.management import NodeFailed, ask
from deploy.gateway.state import Replica
from deploy.run.node import Node

# Of a model's name, which becomes a part of the archive's.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# Seconds for one call; for a model's workers until they are READY; and between two looks at them.
CALL_S, READY_S, LOOK_S = 30.0, 100.0, 0.25
# Characters of a node's own words that are passed on.
WORDS = 200


class Absent(Exception):
    """The node has no such model, or no such archive."""


async def load(gateway: Gateway, name: str, parameters: object = None) -> None:
    """Register NAME.mar with one worker on each node that has no such model, and wait until it is READY.

    Raises:
        RequestError: management is not let through, the name or the parameters are not taken, no node has such an
            archive, or some nodes did not load it.
    """
    check(gateway)
    if not NAME.fullmatch(name):
        raise RequestError(400, "a model's name must be letters, digits, dots, dashes and underscores")
    if parameters:
        words = "parameters of loading are not supported: an archive has its own settings"
        raise RequestError(400, words, UNIMPLEMENTED)
    if failed := await _on_all(gateway, name, _load):
        raise _nodes_failed(gateway, failed)


async def unload(gateway: Gateway, name: str) -> None:
    """Remove every version of a model from all nodes.

    Raises:
        RequestError: management is not let through, no node has it, or some nodes did not remove it.
    """
    check(gateway)
    if not NAME.fullmatch(name):
        raise RequestError(404, f"Request for unknown model: '{name[:WORDS]}' is not found")
    failed = await _on_all(gateway, name, _unload)
    # A node that does not have it has nothing to remove.
    if failed := {node: problem for node, problem in failed.items() if not isinstance(problem, Absent)}:
        raise _nodes_failed(gateway, failed)


def check(gateway: Gateway) -> None:
    """Check that management is let through.

    Raises:
        RequestError: it is not.
    """
    if not gateway.settings.management:
        words = "the repository is not let through; the gateway's setting is management: true"
        raise RequestError(400, words, UNIMPLEMENTED)


async def _on_all(
    gateway: Gateway, name: str, call: Callable[[Gateway, Node, str], Awaitable[None]]
) -> dict[str, Exception]:
    """Call every node; return why, for each node that failed. Envoy knows of what was done."""
    nodes = list(gateway.fleet.nodes.values())
    done = await asyncio.gather(*(call(gateway, node, name) for node in nodes), return_exceptions=True)
    await gateway.nodes.look()
    await gateway.write()
    failed: dict[str, Exception] = {}
    for node, problem in zip(nodes, done, strict=True):
        if isinstance(problem, NodeFailed | Absent):
            failed[node.name] = problem
        elif problem is not None:
            raise problem
    if failed and len(failed) == len(nodes) and all(isinstance(problem, Absent) for problem in failed.values()):
        raise RequestError(404, str(failed[nodes[0].name]))
    return failed


def _nodes_failed(gateway: Gateway, failed: dict[str, Exception]) -> RequestError:
    problems = "; ".join(f"{node}: {problem}" for node, problem in failed.items())
    return RequestError(502, f"{len(failed)} of {len(gateway.fleet.nodes)} nodes did not do it: {problems}")


async def _load(gateway: Gateway, node: Node, name: str) -> None:
    replicas = await _replicas(gateway, node, name)
    if not replicas:
        query = urlencode({"url": f"{name}.mar", "initial_workers": 1, "synchronous": "false"})
        if await _call(gateway, node, "POST", f"/models?{query}", 200, 202, 404, 409) == 404:
            raise Absent(f"no archive {name}.mar")
    elif all(replica.workers < 1 for replica in replicas.values() if replica.is_default):
        await _call(gateway, node, "PUT", f"/models/{name}?min_worker=1&max_worker=1", 200, 202)
    deadline = asyncio.get_running_loop().time() + READY_S
    while not any(each.is_default and each.is_ready for each in (await _replicas(gateway, node, name)).values()):
        if asyncio.get_running_loop().time() > deadline:
            raise NodeFailed(f"no READY worker in {READY_S:g} s")
        await asyncio.sleep(LOOK_S)


async def _unload(gateway: Gateway, node: Node, name: str) -> None:
    replicas = await _replicas(gateway, node, name)
    if not replicas:
        raise Absent(f"Request for unknown model: '{name}' is not found")
    # TorchServe removes the default version only where it is the last.
    for version in sorted(replicas, key=lambda version: replicas[version].is_default):
        await _call(gateway, node, "DELETE", f"/models/{name}/{version}", 200, 202, 404)


async def _replicas(gateway: Gateway, node: Node, name: str) -> dict[str, Replica]:
    """Look at a node, and return each version of a model that it has."""
    watch = gateway.nodes.watches[node.name]
    await watch.look()
    if not watch.is_up:
        raise NodeFailed(watch.problem)
    return {version: replica for (model, version), replica in watch.models.items() if model == name}


async def _call(gateway: Gateway, node: Node, method: str, path: str, *statuses: int) -> int:
    """Call a node's management API; an answer of another status is a failure in the node's own words."""
    status, document = await ask(gateway.session, node, path, timeout_s=CALL_S, method=method)
    if status not in statuses:
        said = document.get("message") if isinstance(document, dict) else None
        raise NodeFailed(f"{status}: {str(said)[:WORDS]}")
    return status
