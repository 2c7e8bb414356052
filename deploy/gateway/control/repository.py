"""Loads and unloads a model on all nodes, through their management APIs.

load M   -> each node: POST /models?url=M.mar, or a worker for a model without workers -> READY -> Envoy has checked it
unload M -> each node: DELETE /models/M/V, the default version last
"""

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import quote, urlencode

from deploy.gateway.control.gateway import Control
from deploy.gateway.management import NodeFailed, ask
from deploy.gateway.state import Placement
from deploy.nodes.run.node import Node
from deploy.protocol.errors import RequestError, unknown_model
from handlers.protocol.statuses import UNIMPLEMENTED
from torchserve_client.archives import check_name

CALL_S = 30.0  # seconds for one call
READY_S = 100.0  # seconds until a model's workers are READY
POLL_S = 0.25  # seconds between two polls of the workers
ROUTED_S, ROUTED_POLL_S = 5.0, 0.05  # seconds until Envoy has checked a loaded model's nodes, and between two questions
MESSAGE_CHARS = 200  # characters of a node's message in an error


class NoArchive(NodeFailed):
    """The node does not have the archive."""


def check(gateway: Control) -> None:
    """Raise RequestError unless the settings allow management."""
    if not gateway.settings.management:
        words = "the model repository is disabled; enable it with management: true in gateway.yaml"
        raise RequestError(400, words, UNIMPLEMENTED)


async def load(gateway: Control, name: str, parameters: object = None) -> None:
    """Register NAME.mar with one worker on each node that lacks the model, and wait until it is READY."""
    check(gateway)
    try:
        check_name(name)
    except ValueError as error:
        raise RequestError(400, str(error)) from None
    if parameters:
        words = "parameters of loading are not supported: the archive contains the settings"
        raise RequestError(400, words, UNIMPLEMENTED)
    await _on_all(gateway, name, _load)
    deadline = asyncio.get_running_loop().time() + ROUTED_S
    while not await gateway.is_routed(name) and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(ROUTED_POLL_S)


async def unload(gateway: Control, name: str) -> None:
    check(gateway)
    await gateway.poll()
    if name not in gateway.fleet.registered:
        raise unknown_model(name)
    await _on_all(gateway, name, _unload)


async def _on_all(gateway: Control, name: str, call: Callable[[Control, Node, str], Awaitable[None]]) -> None:
    """Call every node, and configure Envoy with the results; the error names the nodes that failed."""
    nodes = list(gateway.fleet.nodes.values())
    done = await asyncio.gather(*(call(gateway, node, name) for node in nodes), return_exceptions=True)
    await gateway.poll()
    await gateway.apply()
    failed = {node.name: problem for node, problem in zip(nodes, done, strict=True) if problem is not None}
    for problem in failed.values():
        if not isinstance(problem, NodeFailed):
            raise problem
    if nodes and all(isinstance(problem, NoArchive) for problem in done):
        raise RequestError(404, str(done[0]))
    if failed:
        problems = "; ".join(f"{node}: {problem}" for node, problem in failed.items())
        raise RequestError(502, f"{len(failed)} of {len(nodes)} nodes failed: {problems}")


async def _load(gateway: Control, node: Node, name: str) -> None:
    placements = await _placements(gateway, node, name)
    if not placements:
        query = urlencode({"url": f"{name}.mar", "initial_workers": 1, "synchronous": "false"})
        if await _call(gateway, node, "POST", f"/models?{query}", 200, 202, 404, 409) == 404:
            raise NoArchive(f"no archive {name}.mar")
    elif all(placement.workers < 1 for placement in placements.values() if placement.is_default):
        await _call(gateway, node, "PUT", f"/models/{quote(name, safe='')}?min_worker=1&max_worker=1", 200, 202)
    deadline = asyncio.get_running_loop().time() + READY_S
    while not any(each.is_default and each.is_ready for each in (await _placements(gateway, node, name)).values()):
        if asyncio.get_running_loop().time() > deadline:
            raise NodeFailed(f"no READY worker in {READY_S:g} s")
        await asyncio.sleep(POLL_S)


async def _unload(gateway: Control, node: Node, name: str) -> None:
    placements = await _placements(gateway, node, name)
    # TorchServe removes the default version only as the last version.
    for version in sorted(placements, key=lambda version: placements[version].is_default):
        path = f"/models/{quote(name, safe='')}/{quote(version, safe='')}"
        await _call(gateway, node, "DELETE", path, 200, 202, 404)
    watch = gateway.watches[node.name]
    watch.forget(key for key in watch.models if key[0] == name)


async def _placements(gateway: Control, node: Node, name: str) -> dict[str, Placement]:
    """Poll a node, and return its versions of a model."""
    watch = gateway.watches[node.name]
    await watch.poll()
    if not watch.is_up:
        raise NodeFailed(watch.problem)
    return {
        version: placement
        for (model, version), placement in watch.models.items()
        if model == name and not placement.is_missing
    }


async def _call(gateway: Control, node: Node, method: str, path: str, *statuses: int) -> int:
    """Call a node's management API; another status is a NodeFailed with the node's message."""
    status, document = await ask(gateway.session, node, path, timeout_s=CALL_S, method=method)
    if status not in statuses:
        message = document.get("message") if isinstance(document, dict) else None
        raise NodeFailed(f"{status}: {str(message)[:MESSAGE_CHARS]}")
    return status
