"""Finds what the nodes serve.

    each node, by itself, every two seconds: Watch.look -> Replicas ──┐
    each version on it, once: what its handler says of itself ────────┴> Nodes.models() -> Fleet

A slow or dead node delays no other. One that does not answer keeps what it served, with no worker that is READY:
Envoy's own health checks judge whether it gets requests. What was registered last is kept on disk, so that a control
process that starts anew removes no route before it has seen the model gone.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import TypeAdapter, ValidationError

from deploy.gateway.management import Models, NodeDrains, NodeFailed, metadata, registered
from deploy.gateway.state import Model, Replica, Version
from deploy.run import node as node_files
from deploy.run.node import Node

logger = logging.getLogger(__name__)

# Seconds between two looks at a node. A model that is registered by hand is in Envoy's configuration about one later.
LOOK_S = 2.0
# Seconds until a version is asked again for its metadata: one that has refused, that did not answer, or that knows no
# outputs yet. A function of the user's that declares none knows them once it has run.
REFUSED_S, FAILED_S, OUTPUTS_S = 60.0, 5.0, 5.0


@dataclass(frozen=True, slots=True)
class Known:
    """A node, and what was registered there: model, version, replica."""

    node: Node
    models: list[tuple[str, str, Replica]]


KNOWN = TypeAdapter(list[Known])


@dataclass(slots=True)
class Asked:
    """What the handler of one version on one node said of itself.

    Attributes:
        generation: of the workers that were asked.
        again_s: when it is asked again, on the monotonic clock.
        metadata: the last answer; None where there is none, or it does not know the question.
        task: the question.
    """

    generation: tuple[str, ...] = ()
    again_s: float = 0.0
    metadata: Mapping[str, Any] | None = None
    task: asyncio.Task[None] | None = None


class Watch:
    """What a node serves, as it was seen last.

    Attributes:
        node: the node.
        models: what was registered when it answered last.
        asked: what its handlers said of themselves, by the model's name and the version.
        is_up: whether it answered the last time.
        is_draining: whether it has said that it is about to end; until it describes its models again.
        is_described: whether it ever said what is registered there.
        problem: why it did not answer; "" where it did.
    """

    def __init__(
        self, node: Node, session: aiohttp.ClientSession, changed: Callable[[], None], models: Models | None = None
    ) -> None:
        """Watch a node over `session`, of which `models` were known; `changed` is called after every look."""
        self.node = node
        self.models: Models = models or {}
        self.asked: dict[tuple[str, str], Asked] = {}
        self.is_up = self.is_draining = self.is_described = False
        self.problem = ""
        self._session, self._changed = session, changed
        self._looking = asyncio.Lock()
        self._task = asyncio.create_task(self._follow())

    async def look(self) -> None:
        """Ask the node once. What it served stays known where it does not answer."""
        # One look after the other: an answer of before never replaces one of after.
        async with self._looking:
            problem = ""
            try:
                found = await registered(self._session, self.node)
                self.models = {key: _after(self.models.get(key), replica) for key, replica in found.items()}
                self.is_up, self.is_draining, self.is_described = True, False, True
            except NodeFailed as error:
                # One that drained before stays so: a node that drained and ended is not one that failed.
                self.is_up, problem = False, str(error)
            except NodeDrains:
                self.is_up, self.is_draining, problem = True, True, "drains"
            if problem != self.problem:
                logger.warning("%s: %s", self.node.name, problem or "answers again")
            self.problem = problem
        self._ask()
        self._changed()

    def close(self) -> None:
        """Watch no more."""
        for task in (self._task, *(asked.task for asked in self.asked.values())):
            if task is not None:
                task.cancel()

    async def _follow(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                # A node that is not understood is no reason to stop watching it.
                logger.exception("%s", self.node.name)
            await asyncio.sleep(LOOK_S)

    def _ask(self) -> None:
        """Have the READY workers that are new asked for their metadata, and those that are due."""
        self.asked = {key: asked for key, asked in self.asked.items() if key in self.models}
        for key, replica in self.models.items() if self.is_up else ():
            if replica.ready_workers:
                asked = self.asked.setdefault(key, Asked())
                if asked.generation != replica.generation:
                    asked.generation, asked.again_s = replica.generation, 0.0
                if time.monotonic() >= asked.again_s and (asked.task is None or asked.task.done()):
                    asked.task = asyncio.create_task(self._ask_one(asked, *key))

    async def _ask_one(self, asked: Asked, model: str, version: str) -> None:
        generation = asked.generation
        try:
            asked.metadata = found = await metadata(self._session, self.node, model, version)
            again_s = REFUSED_S if found is None else math.inf if found["outputs"] else OUTPUTS_S
        except NodeFailed as error:
            logger.warning("%s %s on %s: metadata: %s", model, version, self.node.name, error)
            again_s = FAILED_S
        if asked.generation == generation:
            asked.again_s = time.monotonic() + again_s
        self._changed()


def _after(before: Replica | None, now: Replica) -> Replica:
    """Return a replica with the restarts since it was seen before."""
    if before is None:
        return now
    others = sum(before.processes.get(worker, pid) != pid for worker, pid in now.processes.items())
    return replace(now, processes={**before.processes, **now.processes}, restarts=before.restarts + others)


class Nodes:
    """The nodes, each watched by a task of its own."""

    def __init__(self, session: aiohttp.ClientSession, changed: Callable[[], None], path: Path) -> None:
        """Watch no node yet; in a running loop. `changed` is called after each look; `save` writes `path`."""
        self._session, self._changed, self._path = session, changed, path
        self._known = read_known(path)
        self.watches: dict[str, Watch] = {}

    def watch(self, nodes: Iterable[Node]) -> None:
        """Watch these nodes from now on, and no other."""
        wanted = {node.name: node for node in nodes}
        for name, watch in list(self.watches.items()):
            if wanted.get(name) != watch.node:
                self.watches.pop(name).close()
        for name, node in wanted.items():
            if name not in self.watches:
                self.watches[name] = Watch(node, self._session, self._changed, self._known.pop(node, None))
        self._changed()

    @property
    def by_name(self) -> dict[str, Node]:
        """The nodes that are watched, by name."""
        return {name: watch.node for name, watch in self.watches.items()}

    @property
    def draining(self) -> frozenset[str]:
        """Names of the nodes that say themselves that they are about to end."""
        return frozenset(name for name, watch in self.watches.items() if watch.is_draining)

    @property
    def registered(self) -> set[tuple[str, str]] | None:
        """Names and versions of the models on any node; None until each has said what it has."""
        if not self.watches or not all(watch.is_described for watch in self.watches.values()):
            return None
        return {key for watch in self.watches.values() for key in watch.models}

    def is_up(self, name: str) -> bool:
        """Return whether a node answered when it was asked last."""
        return name in self.watches and self.watches[name].is_up

    async def look(self, timeout_s: float | None = None) -> None:
        """Look at every node now; None waits for a slow one as long as it may take to answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(watch.look() for watch in self.watches.values()))

    def models(self) -> dict[str, Model]:
        """Return everything that the nodes serve, each version with what its handler says of itself."""
        found: dict[str, dict[str, dict[str, Replica]]] = {}
        said: dict[tuple[str, str], Mapping[str, Any]] = {}
        for node, watch in self.watches.items():
            for (name, version), replica in watch.models.items():
                seen = replica if watch.is_up else replace(replica, ready_workers=0, queued=None)
                found.setdefault(name, {}).setdefault(version, {})[node] = seen
            for key, asked in watch.asked.items():
                if asked.metadata is not None:
                    said.setdefault(key, asked.metadata)
        return {
            name: Model(
                name,
                {
                    version: Version(version, replicas, said.get((name, version)))
                    for version, replicas in sorted(versions.items())
                },
                _default(versions),
            )
            for name, versions in sorted(found.items())
        }

    def save(self) -> None:
        """Keep what is registered on each node.

        Raises:
            OSError: the file cannot be written.
        """
        known = [
            Known(watch.node, [(*key, replica) for key, replica in watch.models.items()])
            for watch in self.watches.values()
        ]
        node_files.replace(self._path, KNOWN.dump_json(known, indent=1).decode())

    def close(self) -> None:
        """Watch nothing more."""
        for watch in self.watches.values():
            watch.close()


def read_known(path: Path) -> dict[Node, Models]:
    """Read what `Nodes.save` left: nodes, and what was registered there; a file that cannot be read is as none."""
    try:
        known = KNOWN.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        logger.warning("%s: nothing is known of the nodes (%s)", path.name, type(error).__name__)
        return {}
    return {each.node: {(name, version): replica for name, version, replica in each.models} for each in known}


def _default(versions: dict[str, dict[str, Replica]]) -> str | None:
    """Return the version that is the default one on most nodes; of equals the first."""
    nodes = Counter({version: sum(replica.is_default for replica in on.values()) for version, on in versions.items()})
    (version, count), *_ = nodes.most_common(1)
    return version if count else None
