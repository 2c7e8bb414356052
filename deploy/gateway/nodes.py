"""Finds what the nodes serve.

    each node, by itself, every two seconds: Watch.look -> Replicas ──┐
    each version on it, once: what its handler says of itself ────────┴> models -> Fleet

A slow or dead node delays no other. One that does not answer keeps what it served, with no worker that is READY:
Envoy's own health checks judge whether it gets requests. What was registered last is kept on disk, so that a control
process that starts anew removes no route before it has seen the model gone.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from pydantic import TypeAdapter, ValidationError

from deploy.gateway.management import Models, NodeDrains, NodeFailed, NodeGone, metadata, registered
from deploy.gateway.state import Model, Replica, Version
from deploy.run import node as node_files
from deploy.run.node import Node

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds between two looks at a node. A model that is registered by hand is in Envoy's configuration about one later.
LOOK_S = 2.0
# Seconds until a version is asked again for its metadata.
REFUSED_S = 60.0  # one that has refused
FAILED_S = 5.0  # one that did not answer
OUTPUTS_S = 5.0  # one that knows no outputs yet: a user's function that declares none knows them once it has run


@dataclass(frozen=True, slots=True)
class Known:
    """A node, and what was registered there: model, version, replica."""

    node: Node
    models: list[tuple[str, str, Replica]]


KNOWN = TypeAdapter(list[Known])


class Watch:
    """What a node serves, as it was seen last."""

    def __init__(self, node: Node, session: aiohttp.ClientSession, changed: Callable[[], None], models: Models) -> None:
        """Watch a node over `session`, of which `models` were known; `changed` is called after every look."""
        self.node = node
        self.models = models
        # By the model's name and the version.
        self.metadata: dict[tuple[str, str], Mapping[str, Any]] = {}
        # Whether it answered the last time, is about to end, and ever said what is registered there.
        self.is_up = self.is_draining = self.is_described = False
        self.problem = ""
        # Names that no URL can carry, with the reason; and whether the node was gone when it was asked last.
        self._faults: dict[str, str] = {}
        self._was_gone = False
        self._session, self._changed = session, changed
        self._looking = asyncio.Lock()
        self._task = asyncio.create_task(self._follow())
        # The workers that were asked for their metadata last, and the task that asks them.
        self._asked: dict[tuple[str, str], tuple[tuple[str, ...], asyncio.Task[None]]] = {}

    async def look(self) -> None:
        """Ask the node once. What it served stays known where it does not answer."""
        # One look after the other: an answer of before never replaces one of after.
        async with self._looking:
            problem = ""
            try:
                was_restoring = self._is_restoring()
                found, faults = await registered(self._session, self.node)
                missing = self._missing(found, was_restoring or self._is_restoring())
                found = {key: _after(self.models.get(key), replica) for key, replica in found.items()}
                self.models = {**found, **missing}
                for name in faults.keys() - self._faults:
                    logger.error("%s: %r is not served: its name %s", self.node.name, name, faults[name])
                self._faults = faults
                self.is_up, self.is_draining, self.is_described = True, False, True
                self._was_gone = False
            except NodeFailed as error:
                # One that drained before stays so: a node that drained and ended is not one that failed.
                self.is_up, problem = False, str(error)
                self._was_gone |= isinstance(error, NodeGone)
            except NodeDrains:
                self.is_up, self.is_draining, problem = True, True, "drains"
            if problem != self.problem:
                logger.warning("%s: %s", self.node.name, problem or "answers again")
            self.problem = problem
        self._ask_new()
        self._changed()

    def forget(self, keys: Iterable[tuple[str, str]]) -> None:
        """Expect these no more, if they are missing."""
        if gone := {key for key in keys if key in self.models and self.models[key].is_missing}:
            self.models = {key: replica for key, replica in self.models.items() if key not in gone}
            self._ask_new()

    def _is_restoring(self) -> bool | None:
        """Whether the node still restores what it served; None if it does not say so."""
        if (name := self.node.restore_file) is not None and Path(name).with_name(node_files.STARTED).exists():
            return Path(name).exists()
        # A node in a container shows its models once it has all (deploy.container.envoy).
        return False if self.node.inference == self.node.management else None

    def _missing(self, found: Models, is_restoring: bool | None) -> Models:
        """Return what the node had, and has not back since it started again."""
        gone = {key: replica for key, replica in self.models.items() if key not in found}
        if is_restoring is None:
            # It has started again if it was gone, and no worker has its former process.
            kept = [key for key in self.models if key in found]
            is_same = any(found[key].processes.items() & self.models[key].processes.items() for key in kept)
            is_new = self._was_gone and not is_same
            gone = {key: replica for key, replica in gone.items() if is_new or replica.is_missing}
        elif not is_restoring:
            gone = {}
        return {key: replace(each, is_missing=True, ready_workers=0, queued=None) for key, each in gone.items()}

    def close(self) -> None:
        """Watch no more."""
        self._task.cancel()
        for _, task in self._asked.values():
            task.cancel()

    async def _follow(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                # A node that is not understood is no reason to stop watching it.
                logger.exception("%s", self.node.name)
            await asyncio.sleep(LOOK_S)

    def _ask_new(self) -> None:
        """Have READY workers that are new asked for their metadata, and forget what is registered no more."""
        for key in self._asked.keys() - self.models.keys():
            self._asked.pop(key)[1].cancel()
            self.metadata.pop(key, None)
        for key, replica in self.models.items() if self.is_up else ():
            generation, task = self._asked.get(key, (None, None))
            if replica.ready_workers and generation != replica.generation:
                if task is not None:
                    task.cancel()
                self._asked[key] = replica.generation, asyncio.create_task(self._ask(*key))

    async def _ask(self, model: str, version: str) -> None:
        """Ask a version for its metadata, again and again until it declares its outputs."""
        while True:
            again_s = FAILED_S
            if self.is_up and self.models[model, version].ready_workers:
                try:
                    found = await metadata(self._session, self.node, model, version)
                    if found is None:
                        self.metadata.pop((model, version), None)
                    else:
                        self.metadata[model, version] = found
                    self._changed()
                    if found and found["outputs"]:
                        return
                    again_s = REFUSED_S if found is None else OUTPUTS_S
                except NodeFailed as error:
                    logger.warning("%s %s on %s: metadata: %s", model, version, self.node.name, error)
            await asyncio.sleep(again_s)


def _after(before: Replica | None, now: Replica) -> Replica:
    """Return a replica with the restarts since it was seen before."""
    if before is None:
        return now
    others = sum(before.processes.get(worker, pid) != pid for worker, pid in now.processes.items())
    return replace(now, processes={**before.processes, **now.processes}, restarts=before.restarts + others)


def models(watches: Mapping[str, Watch]) -> dict[str, Model]:
    """Return everything that the nodes serve, each version with what its handler says of itself."""
    found: dict[str, dict[str, dict[str, Replica]]] = {}
    said: dict[tuple[str, str], Mapping[str, Any]] = {}
    for node, watch in watches.items():
        for (name, version), replica in watch.models.items():
            seen = replica if watch.is_up else replace(replica, ready_workers=0, queued=None)
            found.setdefault(name, {}).setdefault(version, {})[node] = seen
        said = {**watch.metadata, **said}
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


def _default(versions: dict[str, dict[str, Replica]]) -> str | None:
    """Return the version that is the default one on most nodes; of equals the first."""
    nodes = Counter({version: sum(replica.is_default for replica in on.values()) for version, on in versions.items()})
    (version, count), *_ = nodes.most_common(1)
    return version if count else None


# -- what outlives a restart ------------------------------------------------------------------------------------------


def write_known(path: Path, watches: Iterable[Watch]) -> None:
    """Keep what is registered on each node, for `read_known`."""
    known = [Known(watch.node, [(*key, replica) for key, replica in watch.models.items()]) for watch in watches]
    node_files.replace(path, KNOWN.dump_json(known, indent=1).decode())


def read_known(path: Path) -> dict[Node, Models]:
    """Return the nodes that were known last, and what was registered there."""
    known = read_kept(path, KNOWN, [])
    return {each.node: {(name, version): replica for name, version, replica in each.models} for each in known}


def read_kept(path: Path, kind: TypeAdapter[T], nothing: T) -> T:
    """Read what a control process left to the next one; a file that cannot be read is as none, and the log says so."""
    try:
        return kind.validate_json(path.read_bytes())
    except FileNotFoundError:
        return nothing
    except (OSError, ValidationError) as error:
        logger.warning("%s: nothing is known of before (%s)", path.name, type(error).__name__)
        return nothing
