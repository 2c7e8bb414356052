"""Finds what the nodes serve.

    each node, by itself, every two seconds: Watch.look -> Registered ─┐
    each version, once: Metadata -> what its handler says of itself ───┴> Nodes.models() -> Fleet

A slow or dead node delays no other. One that does not answer keeps what it served, with no worker that is READY:
Envoy's own health checks judge whether it gets requests. What was registered last is kept on disk, so that a control
process that starts anew removes no route before it has seen the model gone.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from pydantic import ValidationError

from deploy.gateway.management import NodeFailed, ask
from deploy.gateway.metadata import Metadata
from deploy.gateway.state import Model, Replica, Version
from deploy.run.node import Node

logger = logging.getLogger(__name__)

# Seconds between two looks at a node. A model that is registered by hand is in Envoy's configuration about one later.
LOOK_S = 2.0
# Seconds for one answer of the management API: it shares its threads with inference and with registrations that wait
# for their workers, and a node that is only busy is not to be called dead.
ANSWER_S = 15.0
# Models of one page of the list, the most that TorchServe gives; and pages, so that no answer keeps us for ever.
PAGE, PAGES = 1000, 100
# What a node that is about to end says of itself, in `type` (deploy.container).
DRAINING = "Draining"
# Questions that a node is asked at once.
QUESTIONS = 4


class NodeDrains(Exception):
    """A node answers, and says that it is about to end."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of a model on one node.

    Attributes:
        replica: what the gateway needs to know of it.
        generation: differs after a registration anew or a worker's restart, when what it says of itself may differ.
        processes: a worker's id -> its process, the last where it has none at the moment.
        restarts: how often a worker was seen with another process than before.
        queued: requests that wait in TorchServe's queue of it.
    """

    replica: Replica
    generation: tuple[str, ...] = ()
    processes: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    queued: int = 0

    @classmethod
    def read(cls, described: Mapping[str, Any], default: str) -> "Registered":
        """Read a description of TorchServe's; `default` is the model's default version on that node."""
        workers = described["workers"]
        ready = [worker for worker in workers if worker["status"] == "READY"]
        return cls(
            Replica(
                workers=int(described["minWorkers"]),
                ready_workers=len(ready),
                batch_size=int(described["batchSize"]),
                max_batch_delay_ms=int(described["maxBatchDelay"]),
                is_default=str(described["modelVersion"]) == default,
            ),
            (
                str(described.get("modelUrl")),
                *sorted(f"{worker.get('id')} {worker.get('startTime')}" for worker in ready),
            ),
            # A worker that starts has -1.
            {str(worker.get("id")): pid for worker in workers if (pid := int(worker.get("pid") or 0)) > 0},
            queued=int((described.get("jobQueueStatus") or {}).get("pendingRequests") or 0),
        )

    def after(self, before: "Registered | None") -> "Registered":
        """Return it with the restarts since it was seen before."""
        if before is None:
            return self
        others = sum(before.processes.get(worker, pid) != pid for worker, pid in self.processes.items())
        return replace(self, processes={**before.processes, **self.processes}, restarts=before.restarts + others)


# The model's name and the version -> what there is of it.
Models = Mapping[tuple[str, str], Registered]


class Watch:
    """What a node serves, as it was seen last.

    `?customized=true` is never asked for: on an adaptive model that question is never over, and stops the model.

    Attributes:
        node: the node.
        models: what was registered when it answered last.
        is_up: whether it answered the last time; None until it was asked.
        is_draining: whether it has said that it is about to end; until it describes its models again.
        is_described: whether it ever said what is registered there.
        problem: why it did not.
    """

    def __init__(self, node: Node, session: aiohttp.ClientSession, models: Models | None = None) -> None:
        """Watch a node over `session`, of which `models` were known; asks nothing yet."""
        self.node = node
        self.models: Models = models or {}
        self.is_up: bool | None = None
        self.is_draining = False
        self.is_described = False
        self.problem = ""
        self._session = session
        self._questions = asyncio.Semaphore(QUESTIONS)
        self._looking = asyncio.Lock()

    async def look(self) -> None:
        """Ask the node once. What it served stays known where it does not answer."""
        # One look after the other: an answer of before never replaces one of after.
        async with self._looking:
            is_up, is_draining, problem = True, False, ""
            try:
                found = await self._registered()
                self.models = {key: each.after(self.models.get(key)) for key, each in found.items()}
                self.is_described = True
            except NodeFailed as error:
                # A node that drained and ended is not one that failed.
                is_up, is_draining, problem = False, self.is_draining, str(error)
            except NodeDrains:
                is_draining = True
            if (is_up, is_draining, problem) != (self.is_up is not False, self.is_draining, self.problem):
                logger.warning("%s: %s", self.node.name, problem or ("drains" if is_draining else "answers again"))
            self.is_up, self.is_draining, self.problem = is_up, is_draining, problem

    async def _registered(self) -> Models:
        described = await asyncio.gather(
            *(self._describe(name) for name in await self._names()), return_exceptions=True
        )
        models: dict[tuple[str, str], Registered] = {}
        for found in described:
            if isinstance(found, BaseException):
                raise found
            models |= found
        return models

    async def _names(self) -> list[str]:
        names: dict[str, None] = {}
        following = ""
        for _ in range(PAGES):
            status, page = await self._ask(f"/models?limit={PAGE}{following}")
            try:
                if status != 200:
                    raise NodeFailed(f"GET /models: {status}")
                names.update((str(each["modelName"]), None) for each in page["models"])
                if not page.get("nextPageToken"):
                    break
                following = f"&next_page_token={quote(str(page['nextPageToken']), safe='')}"
            except (LookupError, TypeError, AttributeError):
                raise NodeFailed("GET /models: no list of models") from None
        return list(names)

    async def _describe(self, name: str) -> dict[tuple[str, str], Registered]:
        """Return every version; none where the model has gone meanwhile."""
        path = f"/models/{quote(name, safe='')}"
        status, versions = await self._ask(f"{path}/all")
        if status == 404:
            return {}
        default = None
        if isinstance(versions, list) and len(versions) > 1:
            status_of_default, of_default = await self._ask(path)
            if status_of_default == 200:
                default = of_default
        try:
            if status != 200:
                raise NodeFailed(f"GET {path}/all: {status}")
            of = str((default or versions)[0]["modelVersion"])
            return {(name, str(each["modelVersion"])): Registered.read(each, of) for each in versions}
        except (LookupError, TypeError, ValueError, AttributeError):
            raise NodeFailed(f"GET {path}/all: no description of a model") from None

    async def _ask(self, path: str) -> tuple[int, Any]:
        async with self._questions:
            status, document = await ask(self._session, self.node, path, timeout_s=ANSWER_S)
        if status == 503 and isinstance(document, dict) and document.get("type") == DRAINING:
            raise NodeDrains
        return status, document


class Nodes:
    """The nodes, each watched by a task of its own."""

    def __init__(self, session: aiohttp.ClientSession, changed: Callable[[], None], path: Path) -> None:
        """Watch no node yet; in a running loop.

        Args:
            session: over which nodes are asked.
            changed: called after whatever may have changed what `models` answers.
            path: the file that `save` writes.
        """
        self._changed = changed
        self._session = session
        self._path = path
        self._known = read_known(path)
        self._metadata = Metadata(session, changed)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.watches: dict[str, Watch] = {}

    def watch(self, nodes: Iterable[Node]) -> None:
        """Watch these nodes from now on, and no other."""
        wanted = {node.name: node for node in nodes}
        for name, watch in list(self.watches.items()):
            if wanted.get(name) != watch.node:
                self._tasks.pop(name).cancel()
                del self.watches[name]
        for name, node in wanted.items():
            if name not in self.watches:
                self.watches[name] = Watch(node, self._session, self._known.pop(node, None))
                self._tasks[name] = asyncio.create_task(self._follow(self.watches[name]))
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
        watch = self.watches.get(name)
        return watch is not None and watch.is_up is True

    async def first_look(self, timeout_s: float) -> None:
        """Wait until every node has answered or failed once, at most so long."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while any(watch.is_up is None for watch in self.watches.values()):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.05)

    async def look(self) -> None:
        """Look at every node now; a slow one is waited for as long as it may take to answer."""
        await asyncio.gather(*(watch.look() for watch in self.watches.values()))
        self._ask_versions()
        self._changed()

    def models(self) -> dict[str, Model]:
        """Return everything that the nodes serve, each version with what its handler says of itself."""
        found: dict[str, dict[str, dict[str, Replica]]] = {}
        for node, watch in self.watches.items():
            for (name, version), registered in watch.models.items():
                is_up = watch.is_up is True
                replica = registered.replica if is_up else replace(registered.replica, ready_workers=0)
                found.setdefault(name, {}).setdefault(version, {})[node] = replica
        return {
            name: Model(
                name,
                {
                    version: Version(version, replicas, self._metadata.of(name, version))
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
        document = [
            {
                "node": asdict(watch.node),
                "models": [[name, version, asdict(each.replica)] for (name, version), each in watch.models.items()],
            }
            for watch in self.watches.values()
        ]
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(document, indent=1), encoding="utf-8")
        new.replace(self._path)

    async def close(self) -> None:
        """Watch nothing more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._metadata.close()

    async def _follow(self, watch: Watch) -> None:
        while True:
            try:
                await watch.look()
                self._ask_versions()
                self._changed()
            except Exception:
                # A node that is not understood is no reason to stop watching it.
                logger.exception("%s", watch.node.name)
            await asyncio.sleep(LOOK_S)

    def _ask_versions(self) -> None:
        """Have every version asked that has a READY worker."""
        served: dict[tuple[str, str], dict[tuple[str, ...], Node]] = {}
        for name, watch in self.watches.items():
            for key, registered in watch.models.items():
                ready = served.setdefault(key, {})
                if watch.is_up and registered.replica.ready_workers:
                    ready[name, *registered.generation] = watch.node
        self._metadata.keep(set(served))
        for (model, version), ready in served.items():
            if ready:
                self._metadata.want(model, version, ready)


def read_known(path: Path) -> dict[Node, Models]:
    """Read what `Nodes.save` left: nodes, and what was registered there; a file that cannot be read is as none."""
    try:
        return {
            Node(**each["node"]): {
                (str(name), str(version)): Registered(Replica(**replica)) for name, version, replica in each["models"]
            }
            for each in json.loads(path.read_text(encoding="utf-8"))
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, ValidationError) as error:
        logger.warning("%s: nothing is known of the nodes (%s)", path.name, type(error).__name__)
        return {}


def _default(versions: dict[str, dict[str, Replica]]) -> str | None:
    """Return the version that is the default one on most nodes; of equals the first."""
    nodes = Counter({version: sum(replica.is_default for replica in on.values()) for version, on in versions.items()})
    (version, count), *_ = nodes.most_common(1)
    return version if count else None
