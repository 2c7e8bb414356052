"""Polls the nodes for their models.

    each node, by itself, every two seconds: Watch.poll -> Placements ──┐
    each version on it, once: the handler's metadata ─────────────────┴> merge_models -> Fleet

A slow or dead node delays no other. A node that does not answer keeps its models, without READY workers: Envoy's health
checks decide whether it receives requests. The registered models are saved, so that a new control process removes no
route before it has seen that the model no longer exists. A version that a restarted node does not restore is lost: its
requests get 503 with the reason, and the gateway's readiness does not wait for it.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import aiohttp
from pydantic import TypeAdapter, ValidationError

from deploy.gateway.management import Models, NodeDraining, NodeFailed, NodeUnreachable, fetch_metadata, list_models
from deploy.gateway.state import Placement, ServedModel, ServedVersion
from deploy.nodes.run.node import STARTED, Node, replace_file
from torchserve_client.payloads import Json

logger = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 2.0  # Seconds between two polls of a node. Envoy's configuration contains a new model about a second later.
# Seconds until a version is asked again for its metadata: a function that declares no outputs knows them after its
# first run.
ASK_S = 5.0
# Seconds after which a version counts as lost that a restarted node does not have, whether or not it reports it.
RESTORE_S = 300.0
LATE = f"its node has not restored it in {RESTORE_S:g} s"
DAMAGED = "its node's record of models was damaged"


@dataclass(frozen=True, slots=True)
class KnownNode:
    node: Node
    models: list[tuple[str, str, Placement]]


KNOWN_NODES = TypeAdapter(list[KnownNode])


class Watch:
    def __init__(self, node: Node, session: aiohttp.ClientSession, changed: Callable[[], None], models: Models) -> None:
        """Poll a node, with the models known from before; call `changed` after every poll."""
        self.node = node
        self.models = models
        self.metadata: dict[tuple[str, str], Json] = {}  # (Model, version) -> the handler's metadata
        self.is_up = False  # whether it answered the last poll
        self.is_draining = False  # whether it reported that it is about to end
        self.is_listed = False  # whether it has ever listed its models
        self.problem = ""
        self._faults: dict[str, str] = {}  # model names that no URL can contain, with the reason
        self._was_unreachable = False  # whether it was unreachable since it last answered
        self._missing_s: dict[tuple[str, str], float] = {}  # when a version was first missing, on the monotonic clock
        self._session, self._changed = session, changed
        self._polling = asyncio.Lock()
        self._task = asyncio.create_task(self._follow())
        # The worker generation that was last asked for metadata, and the task that asks.
        self._questions: dict[tuple[str, str], tuple[tuple[str, ...], asyncio.Task[None]]] = {}

    async def poll(self) -> None:
        """Ask the node once; if it does not answer, its models stay."""
        async with self._polling:  # one poll at a time: an older response never replaces a newer one
            problem = ""
            try:
                pending = self._read_pending()
                found, faults = await list_models(self._session, self.node)
                later = self._read_pending()  # a restoration may begin or end meanwhile
                missing = self._find_missing(found, None if pending is None or later is None else {**pending, **later})
                found = {key: _keep_history(self.models.get(key), placement) for key, placement in found.items()}
                self.models = {**found, **missing}
                self._missing_s = {key: self._missing_s[key] for key in missing}
                for name in faults.keys() - self._faults:
                    logger.error("%s: %r is not served: its name %s", self.node.name, name, faults[name])
                self._faults = faults
                self.is_up, self.is_draining, self.is_listed = True, False, True
                self._was_unreachable = False
            except NodeFailed as error:
                # is_draining stays: a node that drained and ended has not failed.
                self.is_up, problem = False, str(error)
                self._was_unreachable |= isinstance(error, NodeUnreachable)
            except NodeDraining:
                self.is_up, self.is_draining, problem = True, True, "drains"
            if problem != self.problem:
                logger.warning("%s: %s", self.node.name, problem or "answers again")
            self.problem = problem
        self._ask_new()
        self._changed()

    def forget(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove those of these versions that are missing."""
        if removed := {key for key in keys if key in self.models and self.models[key].is_missing}:
            self.models = {key: placement for key, placement in self.models.items() if key not in removed}
            self._ask_new()

    def _read_pending(self) -> Mapping[tuple[str, str], Placement | None] | None:
        """Return the versions that the node has not restored, as registered; None if it does not report that."""
        if (name := self.node.restore_file) is not None and Path(name).with_name(STARTED).exists():
            try:
                entries = json.loads(Path(name).read_bytes())
                # After a power cut null stands for versions that the record does not name.
                unnamed = {key: replace(each, lost=DAMAGED) for key, each in self.models.items() if None in entries}
                return unnamed | {(each["model"], each["version"]): self._recall(each) for each in entries if each}
            except FileNotFoundError:
                return {}
            except (OSError, ValueError, LookupError, TypeError):
                return {**self.models}
        # A node in a container lists its models when all are restored (deploy.nodes.container.envoy).
        return {} if self.node.inference == self.node.management else None

    def _find_missing(self, found: Models, pending: Mapping[tuple[str, str], Placement | None] | None) -> Models:
        """Return the versions that the node had, and has not restored since its restart."""
        absent = {key: placement for key, placement in self.models.items() if key not in found}
        if pending is None:
            # It has restarted if it was unreachable, and no worker has its former process.
            kept = [key for key in self.models if key in found]
            is_same = any(found[key].processes.items() & self.models[key].processes.items() for key in kept)
            is_new = self._was_unreachable and not is_same
            absent = {key: placement for key, placement in absent.items() if is_new or placement.is_missing}
        else:
            # A gateway that has started since, too, knows those that are not restored.
            absent = {key: each for key, each in pending.items() if each and key not in found}
        return {key: self._mark_missing(key, each) for key, each in absent.items()}

    def _recall(self, entry: Json) -> Placement | None:
        """Return a version from its node's record; None from an entry with less, unless the version is known."""
        placement = self.models.get((entry["model"], entry["version"]))
        if placement is None and "batch_size" in entry:
            workers, size, delay_ms = (int(entry[each]) for each in ("min_workers", "batch_size", "max_batch_delay_ms"))
            placement = Placement(workers, 0, size, delay_ms, bool(entry["is_default"]), was_ready=workers > 0)
        return placement and replace(placement, lost=str(entry.get("lost", "")))

    def _mark_missing(self, key: tuple[str, str], placement: Placement) -> Placement:
        since_s = self._missing_s.setdefault(key, time.monotonic())
        lost = placement.lost or (LATE if time.monotonic() - since_s > RESTORE_S else "")
        if lost and lost != getattr(self.models.get(key), "lost", ""):
            logger.error("%s: %s %s is lost: %s", self.node.name, *key, lost)
        return replace(placement, is_missing=True, ready_workers=0, queued=None, lost=lost)

    def close(self) -> None:
        self._task.cancel()
        for _, task in self._questions.values():
            task.cancel()

    async def _follow(self) -> None:
        while True:
            try:
                await self.poll()
            except Exception:
                logger.exception("%s", self.node.name)  # an unexpected response must not end the polls
            await asyncio.sleep(POLL_S)

    def _ask_new(self) -> None:
        """Ask new READY workers for their metadata, and remove the metadata of unregistered versions."""
        for key in self._questions.keys() - self.models.keys():
            self._questions.pop(key)[1].cancel()
            self.metadata.pop(key, None)
        for key, placement in self.models.items() if self.is_up else ():
            generation, task = self._questions.get(key, (None, None))
            if placement.ready_workers and generation != placement.generation and not placement.is_foreign:
                if task is not None:
                    task.cancel()
                self._questions[key] = placement.generation, asyncio.create_task(self._ask(*key))

    async def _ask(self, model: str, version: str) -> None:
        """Ask a version for its metadata until it declares its outputs, or shows that its handler has none."""
        key = model, version
        while True:
            if self.is_up and self.models[key].ready_workers:
                try:
                    found = await fetch_metadata(self._session, self.node, model, version)
                    if found is None:
                        # To another project's handler the question is an input that fails its whole batch: ask once.
                        self.models = {**self.models, key: replace(self.models[key], is_foreign=True)}
                        self.metadata.pop(key, None)
                    else:
                        self.metadata[key] = found
                        space = found.get("vector_space") or ""
                        self.models = {**self.models, key: replace(self.models[key], space=space)}
                    self._changed()
                    if found is None or found["outputs"]:
                        return
                except NodeFailed as error:
                    logger.warning("%s %s on %s: metadata: %s", model, version, self.node.name, error)
            await asyncio.sleep(ASK_S)


def _keep_history(before: Placement | None, now: Placement) -> Placement:
    """Return a placement with the history of the previous polls: restarts, whether it was READY, and its handler."""
    if before is None:
        return replace(now, was_ready=now.is_ready)
    others = sum(before.processes.get(worker, pid) != pid for worker, pid in now.processes.items())
    is_same = before.generation[:1] == now.generation[:1]  # the archive's URL comes first
    return replace(
        now,
        processes={**before.processes, **now.processes},
        restarts=before.restarts + others,
        was_ready=before.was_ready or now.is_ready,
        is_foreign=before.is_foreign and is_same,
        space=before.space if is_same else "",
    )


def merge_models(watches: Mapping[str, Watch]) -> dict[str, ServedModel]:
    """Return the models of all nodes, each version with its metadata."""
    found: dict[str, dict[str, dict[str, Placement]]] = {}
    metadata: dict[tuple[str, str], Json] = {}
    for node, watch in watches.items():
        for (name, version), placement in watch.models.items():
            current = placement if watch.is_up else replace(placement, ready_workers=0, queued=None)
            found.setdefault(name, {}).setdefault(version, {})[node] = current
        metadata = {**watch.metadata, **metadata}
    return {
        name: ServedModel(
            name,
            {
                version: ServedVersion(
                    version,
                    placements,
                    metadata.get((name, version)),
                    {node: each.space for node, each in placements.items() if each.space},
                )
                for version, placements in sorted(versions.items())
            },
            _find_default(versions),
        )
        for name, versions in sorted(found.items())
    }


def _find_default(versions: dict[str, dict[str, Placement]]) -> str | None:
    """Return the version that is the default on most nodes; the first of equals."""
    nodes = Counter({version: sum(each.is_default for each in on.values()) for version, on in versions.items()})
    (version, count), *_ = nodes.most_common(1)
    return version if count else None


def write_known(path: Path, watches: Iterable[Watch]) -> None:
    known = [KnownNode(watch.node, [(*key, placement) for key, placement in watch.models.items()]) for watch in watches]
    replace_file(path, KNOWN_NODES.dump_json(known, indent=1).decode())


def read_known(path: Path) -> dict[Node, Models]:
    known = read_saved(path, KNOWN_NODES, [])
    return {each.node: {(name, version): placement for name, version, placement in each.models} for each in known}


def read_saved(path: Path, kind: TypeAdapter[T], default: T) -> T:
    """Read the state that a former control process saved; return the default if there is none or it is not valid."""
    try:
        return kind.validate_json(path.read_bytes())
    except FileNotFoundError:
        return default
    except (OSError, ValidationError) as error:
        logger.warning("%s: the saved state cannot be read (%s)", path.name, type(error).__name__)
        return default
