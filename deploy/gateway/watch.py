"""One node, watched: what its management API says is registered there.

    GET /models -> names -> GET /models/M/all, and GET /models/M where there are several versions -> Registered
    Registered before and now -> Restarts

`?customized=true` is never asked for: on an adaptive model that question is never over, and stops the model.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from deploy.gateway.state import Replica
from deploy.run.node import Node

logger = logging.getLogger(__name__)

# Seconds for one answer of the management API: it shares its threads with inference and with registrations that wait
# for their workers, and a node that is only busy is not to be called dead. To connect takes no work of the node at all.
ANSWER_S, CONNECT_S = 15.0, 1.0
# Models of one page of the list, the most that TorchServe gives; and pages, so that no answer keeps us for ever.
PAGE, PAGES = 1000, 100
# What a node that is about to end says of itself, in `type` (deploy.container).
DRAINING = "Draining"
# Questions that a node is asked at once.
QUESTIONS = 4


class NodeFailed(Exception):
    """A node did not answer as a TorchServe does; the message says how."""


class NodeDrains(Exception):
    """A node answers, and says that it is about to end."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One version of a model on one node.

    Attributes:
        replica: what the gateway needs to know of it.
        generation: differs after a registration anew or a worker's restart, when what it says of itself may differ.
        processes: a worker's id -> its process; without those that have none at the moment.
        queued: requests that wait in TorchServe's queue of it.
    """

    replica: Replica
    generation: tuple[str, ...]
    processes: Mapping[str, int] = field(default_factory=dict)
    queued: int = 0


# Model -> version -> what there is of it.
Models = Mapping[str, Mapping[str, Registered]]


def token(node: Node, api: str) -> dict[str, str]:
    """Make the header that a node's API asks for: `management` or `inference`.

    Raises:
        NodeFailed: the file of keys cannot be read, or is none.
    """
    if node.token_file is None:
        return {}
    try:
        key = json.loads(Path(node.token_file).read_text(encoding="utf-8"))[api]["key"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NodeFailed(f"no {api} key in {node.token_file} ({type(error).__name__})") from None
    return {"Authorization": f"Bearer {key}"}


class Restarts:
    """How often the workers of each version were seen with another process than before.

    A worker that dies twice between two looks counts once. What is unregistered is forgotten.

    Attributes:
        counts: model and version -> how often; 0 of those that never were.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._processes: dict[tuple[str, str, str], int] = {}

    def take(self, models: Models) -> None:
        """Hold what is registered now against what was."""
        found = {(name, version): each for name, versions in models.items() for version, each in versions.items()}
        self.counts = {of: self.counts.get(of, 0) for of in found}
        # A version whose worker has no process just now keeps the one that it had.
        processes = {of: process for of, process in self._processes.items() if of[:2] in found}
        for (name, version), each in found.items():
            for worker, process in each.processes.items():
                if processes.get((name, version, worker), process) != process:
                    self.counts[name, version] += 1
                processes[name, version, worker] = process
        self._processes = processes


class Watch:
    """What a node serves, as it was seen last.

    Attributes:
        node: the node.
        restarts: of its workers, since it is watched.
        models: what was registered when it answered last; empty until it has.
        is_up: whether it answered the last time; None until it was asked.
        is_draining: whether it has said that it is about to end; until it describes its models again.
        is_described: whether it ever said what is registered there.
        problem: why it did not.
    """

    def __init__(self, node: Node, session: aiohttp.ClientSession) -> None:
        """Watch a node over `session`; asks nothing yet."""
        self.node = node
        self.models: Models = {}
        self.is_up: bool | None = None
        self.is_draining = False
        self.is_described = False
        self.problem = ""
        self.restarts = Restarts()
        self._session = session
        self._questions = asyncio.Semaphore(QUESTIONS)
        self._looking = asyncio.Lock()

    async def look(self) -> None:
        """Ask the node once. What it served stays known where it does not answer."""
        # One look after the other: an answer of before never replaces one of after.
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        try:
            self.models = await self._registered()
            self.is_described = True
            self.restarts.take(self.models)
        except NodeFailed as error:
            if self.is_up is not False or self.problem != str(error):
                logger.warning("%s: %s", self.node.name, error)
            self.is_up, self.problem = False, str(error)
        except NodeDrains:
            if not self.is_draining:
                logger.info("%s: drains", self.node.name)
            self.is_up, self.is_draining, self.problem = True, True, ""
        else:
            if self.is_up is False or self.is_draining:
                logger.info("%s: answers again", self.node.name)
            self.is_up, self.is_draining, self.problem = True, False, ""

    async def _registered(self) -> Models:
        headers = token(self.node, "management")
        names = await self._names(headers)
        described = await asyncio.gather(*(self._describe(name, headers) for name in names), return_exceptions=True)
        models = {}
        for name, found in zip(names, described, strict=True):
            if isinstance(found, BaseException):
                raise found
            if found:
                models[name] = found
        return models

    async def _names(self, headers: Mapping[str, str]) -> list[str]:
        names: dict[str, None] = {}
        following = ""
        for _ in range(PAGES):
            status, page = await self._ask(f"/models?limit={PAGE}{following}", headers)
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

    async def _describe(self, name: str, headers: Mapping[str, str]) -> dict[str, Registered]:
        """Every version; none where the model has gone meanwhile."""
        path = f"/models/{quote(name, safe='')}"
        status, versions = await self._ask(f"{path}/all", headers)
        if status == 404:
            return {}
        default = None
        if isinstance(versions, list) and len(versions) > 1:
            status_of_default, of_default = await self._ask(path, headers)
            if status_of_default == 200:
                default = of_default
        try:
            if status != 200:
                raise NodeFailed(f"GET {path}/all: {status}")
            of = str((default or versions)[0]["modelVersion"])
            return {str(each["modelVersion"]): _registered(each, of) for each in versions}
        except (LookupError, TypeError, ValueError, AttributeError):
            raise NodeFailed(f"GET {path}/all: no description of a model") from None

    async def _ask(self, path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
        timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
        # Quoted already: a name may hold what would be taken apart again.
        url = URL(f"{self.node.management}{path}", encoded=True)
        async with self._questions:
            try:
                async with self._session.get(url, headers=headers, timeout=timeout) as answer:
                    status, document = answer.status, json.loads(await answer.read())
            except TimeoutError:
                raise NodeFailed(f"no answer in {ANSWER_S:g} s") from None
            except (aiohttp.ClientError, OSError) as error:
                raise NodeFailed(f"cannot be reached ({type(error).__name__})") from None
            except ValueError:
                raise NodeFailed(f"GET {path.partition('?')[0]}: no JSON") from None
        if status == 503 and isinstance(document, dict) and document.get("type") == DRAINING:
            raise NodeDrains
        return status, document


def _registered(described: Mapping[str, Any], default: str) -> Registered:
    workers = described["workers"]
    ready = [worker for worker in workers if worker["status"] == "READY"]
    return Registered(
        Replica(
            workers=int(described["minWorkers"]),
            ready_workers=len(ready),
            batch_size=int(described["batchSize"]),
            max_batch_delay_ms=int(described["maxBatchDelay"]),
            is_default=str(described["modelVersion"]) == default,
        ),
        (str(described.get("modelUrl")), *sorted(f"{worker.get('id')} {worker.get('startTime')}" for worker in ready)),
        # A worker that starts has -1.
        {str(worker.get("id")): pid for worker in workers if (pid := int(worker.get("pid") or 0)) > 0},
        int((described.get("jobQueueStatus") or {}).get("pendingRequests") or 0),
    )
