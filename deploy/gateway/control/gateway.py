"""Holds the parts of the control process together, and does what is due every few seconds.

gateway.yaml, nodes.json ─> settings, nodes ─> Discovery ─┐
operator ─> Decisions ────────────────────────────────────┴> Fleet ─> Edge.write: Envoy's files
every two seconds: scrape ─> Totals
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from deploy.gateway.control import description
from deploy.gateway.control.decisions import Decisions, canary_of
from deploy.gateway.discovery import Discovery
from deploy.gateway.envoy.process import Traffic
from deploy.gateway.own_metrics import own_metrics
from deploy.gateway.scrape import Series, merge, parse, scrape
from deploy.gateway.settings import Settings
from deploy.gateway.state import Canary, Fleet, without
from deploy.gateway.statistics import Totals
from deploy.gateway.summary import Summary
from deploy.run.node import Node

logger = logging.getLogger(__name__)

# Seconds between two scrapes of all nodes; and how old one may be that a question for statistics is answered from.
# Handlers report once a second, so fresher is no truer.
SCRAPE_S, FRESH_S = 2.0, 0.5
# Seconds that the first look at the nodes may take before Envoy is configured without those that have not answered.
FIRST_LOOK_S = 3.0
# Seconds that a look at the nodes may take whose answer only has to be fresh.
LOOK_S = 3.0
# Seconds in which changes are gathered before they are written: one round of looks often brings several.
SETTLE_S = 0.1
# Seconds until Envoy's files are tried again, where they could not be written.
RETRY_S = 2.0


class Edge(Protocol):
    """Envoy, as the control process needs it; all of it may block."""

    def write(self, settings: Settings, fleet: Fleet) -> None:
        """Configure it."""

    def traffic(self) -> Mapping[str, Traffic]:
        """Node -> what it has in flight, and whether it gets more."""

    def requests(self) -> Mapping[str, Mapping[str, int]]:
        """Cluster -> node -> requests in flight."""

    def prometheus(self) -> str:
        """Its metrics."""


class Gateway:
    """What is known of the nodes, what was decided, and what Envoy is told.

    Attributes:
        settings: as they were read last.
        discovery, decisions, totals, summary: its parts.
        fleet: what Envoy is configured by.
    """

    def __init__(self, settings: Settings, nodes: Sequence[Node], edge: Edge, run: Path) -> None:
        """Wire the parts; in a running loop. `run` is the folder of what outlives a restart."""
        self.settings = settings
        self.edge = edge
        self.fleet = Fleet()
        self.decisions = Decisions(run / "decisions.json")
        self.totals = Totals(run / "statistics.json")
        self.summary = Summary()
        self._changed = asyncio.Event()
        self.discovery = Discovery(self.update)
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        self._writing = asyncio.Lock()
        self._scraping = asyncio.Lock()
        self._scraped_s = float("-inf")
        self._answered: frozenset[str] = frozenset()
        self._tasks: list[asyncio.Task[None]] = []
        self.discovery.watch(nodes)

    async def start(self) -> None:
        """Look at the nodes, configure Envoy, and go on doing so.

        Raises:
            OSError, ValueError: Envoy's files cannot be written.
        """
        await self.discovery.first_look(FIRST_LOOK_S)
        await self.write()
        self._tasks = [asyncio.create_task(each) for each in (self._write(), self._scrape())]

    async def close(self) -> None:
        """Stop, and keep what is to outlive it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.discovery.close()
        await self._session.close()
        self.totals.save()

    def configure(self, settings: Settings, nodes: Sequence[Node]) -> None:
        """Go on with other settings and nodes."""
        self.settings = settings
        self.decisions.keep({node.name for node in nodes})
        self.discovery.watch(nodes)
        self._changed.set()

    def update(self) -> None:
        """Make the fleet anew; Envoy is told where it differs."""
        self._forget_withdrawn()
        models, withdrawn = without(self.discovery.models(), self.decisions.withdrawn)
        canaries = {}
        for name, canary in self.canaries().items():
            # Envoy sends nobody to a version that has gone.
            if name in models and (version := models[name].find(canary.version)) is not None:
                canaries[name] = replace(canary, version=version)
        nodes = self.discovery.nodes
        draining = self.decisions.draining & nodes.keys() | self.discovery.draining
        fleet = Fleet(nodes, draining, models, canaries, withdrawn)
        if fleet != self.fleet:
            self.fleet = fleet
            self._changed.set()

    def _forget_withdrawn(self) -> None:
        """Forget what is withdrawn and on no node any more; not before each has said what it has."""
        watches = self.discovery.watches.values()
        if watches and all(watch.is_described for watch in watches):
            self.decisions.keep_withdrawn(
                {
                    (model, version)
                    for watch in watches
                    for model, versions in watch.models.items()
                    for version in versions
                }
            )

    def canaries(self) -> dict[str, Canary]:
        """By the model's name: what gateway.yaml has, and in its place what the control port was told."""
        declared = {model: canary_of(asked) for model, asked in self.settings.canaries.items()}
        return {**declared, **self.decisions.canaries}

    async def write(self) -> None:
        """Tell Envoy what is known and decided now; it takes it over within some ms.

        Raises:
            OSError: its files cannot be written.
        """
        self.update()
        async with self._writing:
            self._changed.clear()
            await asyncio.to_thread(self.edge.write, self.settings, self.fleet)

    def is_ready(self) -> bool:
        """Whether some node answers, and all workers of every version are READY."""
        is_any_up = any(self.discovery.is_up(name) for name in self.fleet.nodes)
        return is_any_up and description.is_server_ready(self.fleet)

    async def statistics(self, name: str, asked: str = "") -> list[dict[str, Any]]:
        """Statistics of a model's versions, or of every model where no name is given.

        Raises:
            NotFound: there is no such version.
        """
        if name and asked:
            model, version = description.find(self.fleet, name, asked)
            wanted = [(model, version.version)]
        elif name:
            model, _ = description.find(self.fleet, name)
            wanted = [(model, version) for version in model.versions]
        else:
            wanted = [(model, version) for model in self.fleet.models.values() for version in model.versions]
        await self.scrape(FRESH_S)
        return [
            {
                "name": model.name,
                "version": description.numbered(model, version),
                **self.totals.statistics(model.name, version),
            }
            for model, version in wanted
        ]

    async def scrape(self, age_s: float = 0.0) -> Mapping[str, Mapping[Series, float]]:
        """Take in the nodes' counters, unless that was done within the last `age_s`.

        Returns:
            What each node has that answered; nothing where that was done.
        """
        async with self._scraping:
            if time.monotonic() - self._scraped_s < age_s:
                return {}
            texts = await scrape(self._session, self.fleet.nodes.values())
            self._scraped_s = time.monotonic()
            self._answered = frozenset(texts)
            scraped = {node: parse(text) for node, text in texts.items()}
            self.totals.add(scraped, time.time_ns() // 1_000_000)
            return scraped

    async def metrics(self) -> str:
        """Envoy's metrics, the control process' and each node's, asked for now."""
        texts, envoy = await asyncio.gather(
            scrape(self._session, self.fleet.nodes.values()), asyncio.to_thread(self._prometheus)
        )
        return merge(texts, envoy + self._own(texts.keys()))

    async def own_metrics(self) -> str:
        """Envoy's metrics, asked for now, and the control process': of whoever scrapes the nodes for himself."""
        return await asyncio.to_thread(self._prometheus) + self._own(self._answered)

    def _own(self, answered: Container[str]) -> str:
        up = {name: name in answered for name in self.fleet.nodes}
        return own_metrics(self.fleet, up, self.discovery.watches)

    def _prometheus(self) -> str:
        try:
            return self.edge.prometheus()
        except OSError as error:
            logger.warning("Envoy's metrics: %s", type(error).__name__)
            return ""

    async def look(self) -> None:
        """Look at every node now; one that is slow is not waited for."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.discovery.look(), LOOK_S)
        self.update()

    async def requests(self) -> Mapping[str, Mapping[str, int]] | None:
        """Cluster -> node -> requests in flight; None where Envoy does not answer."""
        try:
            return await asyncio.to_thread(self.edge.requests)
        except OSError as error:
            logger.warning("Envoy's requests in flight: %s", type(error).__name__)
            return None

    async def traffic(self) -> Mapping[str, Traffic] | None:
        """Node -> what Envoy has there; None where Envoy does not answer."""
        try:
            return await asyncio.to_thread(self.edge.traffic)
        except OSError as error:
            logger.warning("Envoy's requests in flight: %s", type(error).__name__)
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
                scraped = await self.scrape()
                self.summary.observe(time.monotonic(), self.fleet, scraped)
                await asyncio.to_thread(self.totals.save)
            except Exception:
                logger.exception("scrape")
            await asyncio.sleep(SCRAPE_S)
