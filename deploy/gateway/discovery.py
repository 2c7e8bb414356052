"""Finds what the nodes serve.

    each node, by itself, every two seconds: Watch.look -> Registered ─┐
    each version, once: Metadata -> what its handler says of itself ───┴> models() -> Fleet

A slow or dead node delays no other. One that does not answer keeps what it served, with no worker that is READY:
Envoy's own health checks judge whether it gets requests, and a node that restarts is not forgotten.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import aiohttp

from deploy.gateway.metadata import Metadata
from deploy.gateway.state import Model, Replica, Version
from deploy.gateway.watch import Watch
from deploy.run.node import Node

logger = logging.getLogger(__name__)

# Seconds between two looks at a node. A model that is registered by hand is in Envoy's configuration about one later.
LOOK_S = 2.0


class Discovery:
    """The nodes, each watched by a task of its own."""

    def __init__(self, changed: Callable[[], None], look_s: float = LOOK_S) -> None:
        """Watch no node yet; in a running loop.

        Args:
            changed: called after whatever may have changed what `models` answers.
            look_s: seconds between two looks at a node.
        """
        self._changed = changed
        self._look_s = look_s
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        self._metadata = Metadata(self._session, changed)
        self._watches: dict[str, Watch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def watch(self, nodes: Iterable[Node]) -> None:
        """Watch these nodes from now on, and no other."""
        wanted = {node.name: node for node in nodes}
        for name, watch in list(self._watches.items()):
            if wanted.get(name) != watch.node:
                self._tasks.pop(name).cancel()
                del self._watches[name]
        for name, node in wanted.items():
            if name not in self._watches:
                self._watches[name] = Watch(node, self._session)
                self._tasks[name] = asyncio.create_task(self._follow(self._watches[name]))
        self._changed()

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes that are watched, by name."""
        return {name: watch.node for name, watch in self._watches.items()}

    @property
    def draining(self) -> frozenset[str]:
        """Names of the nodes that say themselves that they are about to end."""
        return frozenset(name for name, watch in self._watches.items() if watch.is_draining)

    def is_up(self, name: str) -> bool:
        """Whether a node answered when it was asked last."""
        watch = self._watches.get(name)
        return watch is not None and watch.is_up is True

    @property
    def watches(self) -> Mapping[str, Watch]:
        """What was seen of each node, by name."""
        return self._watches

    async def first_look(self, timeout_s: float) -> None:
        """Wait until every node has answered or failed once, at most so long."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while any(watch.is_up is None for watch in self._watches.values()):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.05)

    async def look(self) -> None:
        """Look at every node now; a slow one is waited for as long as it may take to answer."""
        await asyncio.gather(*(watch.look() for watch in self._watches.values()))
        self._ask_versions()
        self._changed()

    def models(self) -> dict[str, Model]:
        """Everything that the nodes serve, each version with its replicas and what its handler says of itself."""
        found: dict[str, dict[str, dict[str, Replica]]] = {}
        for name, watch in self._watches.items():
            for model, versions in watch.models.items():
                for version, registered in versions.items():
                    is_up = watch.is_up is True
                    replica = registered.replica if is_up else replace(registered.replica, ready_workers=0)
                    found.setdefault(model, {}).setdefault(version, {})[name] = replica
        return {
            model: Model(
                model,
                {
                    version: Version(version, replicas, self._metadata.of(model, version))
                    for version, replicas in sorted(versions.items())
                },
                _default(versions),
            )
            for model, versions in sorted(found.items())
        }

    async def close(self) -> None:
        """Watch nothing more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._metadata.close()
        await self._session.close()

    async def _follow(self, watch: Watch) -> None:
        while True:
            try:
                await watch.look()
                self._ask_versions()
                self._changed()
            except Exception:
                # A node that is not understood is no reason to stop watching it.
                logger.exception("%s", watch.node.name)
            await asyncio.sleep(self._look_s)

    def _ask_versions(self) -> None:
        """Have every version asked that has a READY worker."""
        served: dict[tuple[str, str], dict[tuple[str, ...], Node]] = {}
        for name, watch in self._watches.items():
            for model, versions in watch.models.items():
                for version, registered in versions.items():
                    ready = served.setdefault((model, version), {})
                    if watch.is_up and registered.replica.ready_workers:
                        ready[name, *registered.generation] = watch.node
        self._metadata.keep(set(served))
        for (model, version), ready in served.items():
            if ready:
                self._metadata.want(model, version, ready)


def _default(versions: dict[str, dict[str, Replica]]) -> str | None:
    """The version that is the default one on most nodes; of equals the first."""
    nodes = Counter({version: sum(replica.is_default for replica in on.values()) for version, on in versions.items()})
    (version, count), *_ = nodes.most_common(1)
    return version if count else None
