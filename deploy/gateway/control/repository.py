"""Loads and unloads a model on all nodes, through their management APIs.

    load M   -> each node: POST /models?url=M.mar, or workers for one that has none -> its workers READY
    unload M -> each node: DELETE /models/M/V, the default version last

Every node is tried; what any of them did not do is said of it by name.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

from deploy.gateway.control.errors import BadRequest, NodesFailed, NotFound, NotSupported
from deploy.gateway.control.gateway import Gateway
from deploy.gateway.management import NodeFailed, ask
from deploy.run.node import Node

# Of a model's name, which becomes a part of the archive's.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# Seconds for one call; for a model's workers until they are READY; and between two looks at them.
CALL_S, READY_S, LOOK_S = 30.0, 100.0, 0.25
# Characters of a node's own words that are passed on.
WORDS = 200


class Absent(Exception):
    """The node has no such model, or no such archive."""


class Repository:
    """Models on all nodes."""

    def __init__(self, gateway: Gateway) -> None:
        """Manage the gateway's nodes."""
        self._gateway = gateway

    def check(self) -> None:
        """Check that management is let through.

        Raises:
            NotSupported: it is not.
        """
        if not self._gateway.settings.management:
            raise NotSupported("the repository is not let through; the gateway's setting is management: true")

    async def load(self, name: str, parameters: object = None) -> None:
        """Register NAME.mar with one worker on each node that has no such model, and wait until it is READY.

        Raises:
            BadRequest: the name or the parameters are none that are taken.
            NotFound: no node has such an archive.
            NodesFailed: some nodes did not load it.
        """
        if not NAME.fullmatch(name):
            raise BadRequest("a model's name must be letters, digits, dots, dashes and underscores")
        if parameters:
            raise NotSupported("parameters of loading are not supported: an archive has its own settings")
        await self._on_all(name, self._load)

    async def unload(self, name: str) -> None:
        """Remove every version of a model from all nodes.

        Raises:
            NotFound: no node has it.
            NodesFailed: some nodes did not remove it.
        """
        if not NAME.fullmatch(name):
            raise NotFound(f"Request for unknown model: '{name[:WORDS]}' is not found")
        await self._on_all(name, self._unload)

    async def _on_all(self, name: str, call: Callable[[Node, str], Awaitable[None]]) -> None:
        nodes = list(self._gateway.fleet.nodes.values())
        done = await asyncio.gather(*(call(node, name) for node in nodes), return_exceptions=True)
        # What is answered is so: Envoy knows of it.
        await self._gateway.nodes.look()
        await self._gateway.write()
        failed = {node.name: problem for node, problem in zip(nodes, done, strict=True) if problem is not None}
        for problem in failed.values():
            if not isinstance(problem, NodeFailed | Absent):
                raise problem
        absent = [node for node, problem in failed.items() if isinstance(problem, Absent)]
        if failed and len(absent) == len(nodes):
            raise NotFound(str(failed[absent[0]]))
        if call == self._unload:
            # A node that does not have it has nothing to remove.
            failed = {node: problem for node, problem in failed.items() if node not in absent}
        if failed:
            problems = "; ".join(f"{node}: {problem}" for node, problem in failed.items())
            raise NodesFailed(f"{len(failed)} of {len(nodes)} nodes did not do it: {problems}")

    async def _load(self, node: Node, name: str) -> None:
        status, described = await self._call(node, "GET", f"/models/{name}")
        if status == 404:
            query = urlencode({"url": f"{name}.mar", "initial_workers": 1, "synchronous": "false"})
            status, said = await self._call(node, "POST", f"/models?{query}")
            if status == 404:
                raise Absent(f"no archive {name}.mar")
            if status not in (200, 202, 409):
                raise NodeFailed(said)
        elif status == 200 and described[0]["minWorkers"] < 1:
            status, said = await self._call(node, "PUT", f"/models/{name}?min_worker=1&max_worker=1")
            if status not in (200, 202):
                raise NodeFailed(said)
        deadline = asyncio.get_running_loop().time() + READY_S
        while not await self._is_ready(node, name):
            if asyncio.get_running_loop().time() > deadline:
                raise NodeFailed(f"no READY worker in {READY_S:g} s")
            await asyncio.sleep(LOOK_S)

    async def _is_ready(self, node: Node, name: str) -> bool:
        status, described = await self._call(node, "GET", f"/models/{name}")
        if status != 200:
            raise NodeFailed(described)
        ready = [worker for worker in described[0]["workers"] if worker["status"] == "READY"]
        return len(ready) >= max(1, int(described[0]["minWorkers"]))

    async def _unload(self, node: Node, name: str) -> None:
        status, versions = await self._call(node, "GET", f"/models/{name}/all")
        if status == 404:
            raise Absent(f"Request for unknown model: '{name}' is not found")
        if status != 200:
            raise NodeFailed(versions)
        _, default = await self._call(node, "GET", f"/models/{name}")
        # TorchServe removes the default version only where it is the last.
        for version in sorted(
            (str(each["modelVersion"]) for each in versions), key=lambda each: each == default[0]["modelVersion"]
        ):
            status, said = await self._call(node, "DELETE", f"/models/{name}/{version}")
            if status not in (200, 202, 404):
                raise NodeFailed(said)

    async def _call(self, node: Node, method: str, path: str) -> tuple[int, Any]:
        """Call a node's management API: return the status, and what it described, or its own words."""
        status, document = await ask(self._gateway.session, node, path, timeout_s=CALL_S, method=method)
        if status == 200 and method == "GET":
            return status, document
        said = document.get("message") if isinstance(document, dict) else None
        return status, f"{status}: {str(said)[:WORDS]}"
