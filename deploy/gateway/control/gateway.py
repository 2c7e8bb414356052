"""Holds the parts of the control process together, and does what is due every few seconds.

gateway.yaml, nodes.json ─> settings, nodes ─> Nodes ───────────────┐
operator ─> Decisions, a file, so that they outlive the process ────┴> Fleet ─> Envoy's files
every two seconds: scrape ─> Statistics ─> Charts
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from aiohttp import web
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from deploy.gateway import metrics
from deploy.gateway.charts import Charts
from deploy.gateway.control import description
from deploy.gateway.envoy.process import Endpoints, Envoy
from deploy.gateway.nodes import Nodes
from deploy.gateway.settings import Canary, Settings
from deploy.gateway.state import Fleet
from deploy.run import node as node_files
from deploy.run.node import Node
from handlers.config import SETTINGS

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds between two scrapes of all nodes; and how old one may be that a question for statistics is answered from.
# Handlers report once a second, so fresher is no truer.
SCRAPE_S, FRESH_S = 2.0, 0.5
# Seconds that the first look at the nodes may take; what has not answered by then keeps what it served last.
FIRST_LOOK_S = 3.0
# Seconds in which changes are gathered before they are written: one round of looks often brings several.
SETTLE_S = 0.1
# Seconds until Envoy's files are tried again, where they could not be written.
RETRY_S = 2.0
# The file of what was registered on the nodes last.
KNOWN = "known.json"


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Decided:
    """What stands until it is decided otherwise.

    Attributes:
        draining: names of nodes that get no new requests.
        withdrawn: model and version of what is off the routes.
        canaries: by the model's name.
    """

    draining: frozenset[str] = frozenset()
    withdrawn: frozenset[tuple[str, str]] = frozenset()
    canaries: dict[str, Canary] = Field(default_factory=dict)


DECIDED = TypeAdapter(Decided)


class Decisions:
    """The file of what was decided last."""

    def __init__(self, path: Path) -> None:
        """Read what the file holds; a file that cannot be read is as none, and the log says so."""
        self._path = path
        self.now = Decided()
        if path.exists():
            try:
                self.now = DECIDED.validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                logger.warning("%s: no decision is known (%s)", path.name, type(error).__name__)

    def decide(self, **parts: Any) -> None:
        """Replace parts of what was decided: kept first, so that nothing holds that a restart would lose.

        Raises:
            OSError: the file cannot be written; nothing has changed.
        """
        decided = replace(self.now, **parts)
        if decided != self.now:
            node_files.replace(self._path, DECIDED.dump_json(decided, indent=1).decode())
            self.now = decided


class Gateway:
    """What is known of the nodes, what operators decided, and Envoy's files.

    Attributes:
        settings: as they were read last.
        nodes, decisions, statistics, charts: its parts.
        fleet: what Envoy is configured by.
    """

    def __init__(self, settings: Settings, nodes: Sequence[Node], envoy: Envoy, run: Path) -> None:
        """Wire the parts; in a running loop. `run` is the folder of what outlives a restart."""
        self.settings = settings
        self.fleet = Fleet()
        self.decisions = Decisions(run / "decisions.json")
        self.statistics = metrics.Statistics()
        self.charts = Charts()
        self.session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        self._envoy = envoy
        self._changed = asyncio.Event()
        self.nodes = Nodes(self.session, self.update, run / KNOWN)
        self._writing = asyncio.Lock()
        self._scraping = asyncio.Lock()
        self._scraped_s = float("-inf")
        # The nodes' metrics as they were scraped last, by the node's name.
        self._texts: Mapping[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.nodes.watch(nodes)

    async def start(self) -> None:
        """Look at the nodes, configure Envoy, and go on doing so.

        Raises:
            OSError, ValueError: Envoy's files cannot be written.
        """
        await self.nodes.look(FIRST_LOOK_S)
        await self.write()
        self._tasks = [asyncio.create_task(each) for each in (self._write(), self._scrape())]

    async def close(self) -> None:
        """Stop all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.nodes.close()
        await self.session.close()

    def configure(self, settings: Settings, nodes: Sequence[Node]) -> None:
        """Go on with other settings and nodes; a node that comes back under its name is not draining."""
        self.settings = settings
        self.decisions.decide(draining=self.decisions.now.draining & {node.name for node in nodes})
        self.nodes.watch(nodes)
        self._changed.set()

    def update(self) -> None:
        """Make the fleet anew; Envoy's files are due where it differs."""
        registered = self.nodes.registered
        if registered is not None:
            # What is registered anew under its name is served.
            self.decisions.decide(withdrawn=self.decisions.now.withdrawn & registered)
        nodes = self.nodes.by_name
        fleet = Fleet(
            nodes,
            self.decisions.now.draining & nodes.keys() | self.nodes.draining,
            self.nodes.models(),
            self.decisions.now.withdrawn,
            is_up=any(map(self.nodes.is_up, nodes)),
        )
        models, canaries = fleet.models, {}
        for name, canary in self.canaries().items():
            # A version that has gone gets no requests.
            if name in models and (version := models[name].find(canary.version)) is not None:
                canaries[name] = replace(canary, version=version)
        fleet = replace(fleet, canaries=canaries)
        if fleet != self.fleet:
            self._changed.set()
        self.fleet = fleet

    def canaries(self) -> dict[str, Canary]:
        """Return those of gateway.yaml, and in their place those of the control port, by the model's name."""
        return {**self.settings.canaries, **self.decisions.now.canaries}

    async def write(self) -> None:
        """Write Envoy's files of what is known and decided now; Envoy reads them within some ms.

        Raises:
            OSError: its files cannot be written.
        """
        self.update()
        async with self._writing:
            self._changed.clear()
            await asyncio.to_thread(self._envoy.write, self.settings, self.fleet)
            self.nodes.save()

    async def triton(self, name: str, asked: str = "") -> list[dict[str, Any]]:
        """Return Triton's statistics of a model's versions, or of every model where no name is given.

        Raises:
            RequestError: there is no such version.
        """
        models = [description.find(self.fleet, name, asked)[0]] if name else list(self.fleet.models.values())
        wanted = [(model, version) for model in models for version in model.versions]
        if asked:
            wanted = [(model, version) for model, version in wanted if version == model.find(asked)]
        await self.scrape(FRESH_S)
        return [
            {
                "name": model.name,
                "version": description.numbered(model, version),
                **self.statistics.triton(model.name, version),
            }
            for model, version in wanted
        ]

    async def scrape(self, age_s: float = 0.0) -> None:
        """Take in the nodes' counters, unless that was done within the last `age_s`."""
        async with self._scraping:
            if time.monotonic() - self._scraped_s < age_s:
                return
            self._texts = await metrics.scrape(self.session, self.fleet.nodes.values())
            self._scraped_s = now_s = time.monotonic()
            scraped = {node: metrics.counters(text) for node, text in self._texts.items()}
            grown = self.statistics.add(scraped, self.fleet.nodes.keys(), time.time_ns() // 1_000_000)
            self.charts.add(now_s, self.fleet.models.keys(), grown)

    async def metrics(self) -> str:
        """Return Envoy's metrics, asked for now, the control process', and each node's as they were scraped last."""
        return metrics.merge(self._texts, await self.own_metrics())

    async def own_metrics(self) -> str:
        """Return Envoy's metrics, asked for now, and the control process': where the nodes are scraped by others."""
        envoy = await self._ask_envoy(self._envoy.prometheus) or ""
        return envoy + metrics.own(self.fleet, self._texts)

    async def endpoints(self) -> Endpoints | None:
        """Return what Envoy has at each node; None where Envoy does not answer."""
        return await self._ask_envoy(self._envoy.endpoints)

    async def _ask_envoy(self, question: Callable[[], T]) -> T | None:
        try:
            return await asyncio.to_thread(question)
        except OSError as error:
            logger.warning("%s", error)
            return None

    async def _write(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(SETTLE_S)
            try:
                await self.write()
            except Exception:
                # Envoy serves on as it was configured last.
                logger.exception("Envoy's files could not be written")
                self._changed.set()
                await asyncio.sleep(RETRY_S)

    async def _scrape(self) -> None:
        while True:
            try:
                await self.scrape()
            except Exception:
                logger.exception("scrape")
            await asyncio.sleep(SCRAPE_S)


GATEWAY = web.AppKey("gateway", Gateway)
