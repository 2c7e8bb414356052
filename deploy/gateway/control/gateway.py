"""The state of the control process, and what is due in it every few seconds.

gateway.yaml, nodes.json ─> settings, a Watch for each node ────────┐
operator ─> Decided, a file, so that it outlives the process ───────┴> Fleet ─> Envoy's files
every two seconds: the nodes' metrics ─> Traffic
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from aiohttp import web
from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from deploy.gateway.control.errors import RequestError
from deploy.gateway.envoy import files
from deploy.gateway.envoy.listeners import CLUSTERS, LISTENERS
from deploy.gateway.envoy.process import POLL_S, Endpoints, Envoy
from deploy.gateway.nodes import Watch, models, read_kept, read_known, write_known
from deploy.gateway.settings import Canary, Settings
from deploy.gateway.state import Fleet
from deploy.gateway.supervisor import PROBLEM
from deploy.gateway.traffic import Traffic
from deploy.run import node as node_files
from deploy.run.node import Node
from handlers.config import SETTINGS

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds between two scrapes of all nodes.
SCRAPE_S = 2.0
# Seconds that the first look at the nodes may take; what has not answered by then keeps what it served last.
FIRST_LOOK_S = 3.0
# Seconds in which changes are gathered before they are written: one round of looks often brings several.
SETTLE_S = 0.1
# Seconds in which Envoy must have read its files.
CONFIRM_S = 5.0
# Seconds until Envoy's files are tried again, where they could not be written.
RETRY_S = 2.0
KNOWN = "known.json"  # file of what was registered on the nodes last
DECISIONS = "decisions.json"  # file of what was decided


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Decided:
    """What stands until it is decided otherwise: of nodes, of versions of models, and of models."""

    draining: frozenset[str] = frozenset()
    withdrawn: frozenset[tuple[str, str]] = frozenset()
    canaries: dict[str, Canary] = Field(default_factory=dict)


DECIDED = TypeAdapter(Decided)


class Gateway:
    """What is known of the nodes, what operators decided, and Envoy's files."""

    def __init__(self, settings: Settings, nodes: Sequence[Node], envoy: Envoy, run: Path) -> None:
        """Wire the parts; in a running loop. `run` is the folder of what outlives a restart."""
        self.settings = settings
        self.watches: dict[str, Watch] = {}
        self.decided = read_kept(run / DECISIONS, DECIDED, Decided())
        self.fleet = Fleet()
        # What the control process found of gateway.yaml (`Configuration`).
        self.unapplied, self.is_shut = "", False
        self.traffic = Traffic()
        self.session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        self._envoy, self._run = envoy, run
        self._known = read_known(run / KNOWN)
        # The files that Envoy has not accepted, and the keys that it has.
        self._unaccepted: frozenset[str] = frozenset()
        self._keys = settings.keys
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._watch(nodes)

    async def start(self) -> None:
        """Look at the nodes, configure Envoy, and go on doing so."""
        await self.look(FIRST_LOOK_S)
        with suppress(OSError):
            await self.write()
        # Where the disk is full, Envoy serves on as it was configured last; what could not be written is due again.
        self._changed.set()
        self._tasks = [asyncio.create_task(each) for each in (self._write(), self._scrape())]

    async def close(self) -> None:
        """Stop all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for watch in self.watches.values():
            watch.close()
        await self.session.close()

    def configure(self, settings: Settings, nodes: Sequence[Node]) -> None:
        """Go on with other settings and nodes; a node that comes back under its name is not draining."""
        self.settings = settings
        self.decide(draining=self.decided.draining & {node.name for node in nodes})
        self._watch(nodes)
        self._changed.set()

    def _watch(self, nodes: Iterable[Node]) -> None:
        """Watch these nodes from now on, and no other."""
        wanted = {node.name: node for node in nodes}
        for name, watch in list(self.watches.items()):
            if wanted.get(name) != watch.node:
                self.watches.pop(name).close()
        for name, node in wanted.items():
            if name not in self.watches:
                self.watches[name] = Watch(node, self.session, self.update, self._known.pop(node, {}))
        self.update()

    async def look(self, timeout_s: float | None = None) -> None:
        """Look at every node now; None waits for a slow one as long as it may take to answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(watch.look() for watch in self.watches.values()))

    def decide(self, **parts: Any) -> None:
        """Replace parts of what was decided: kept first, so that nothing holds that a restart would lose."""
        decided = replace(self.decided, **parts)
        if decided != self.decided:
            node_files.replace(self._run / DECISIONS, DECIDED.dump_json(decided, indent=1).decode())
            self.decided = decided

    def update(self) -> None:
        """Make the fleet anew; Envoy's files are due where it differs."""
        watches = self.watches
        for watch in watches.values():
            # An operator unregisters what is not back.
            watch.forget(self.decided.withdrawn)
        if watches and all(watch.is_described for watch in watches.values()):
            # What is registered anew under its name is served.
            registered = {key for watch in watches.values() for key in watch.models}
            self.decide(withdrawn=self.decided.withdrawn & registered)
        says_so = {name for name, watch in watches.items() if watch.is_draining}
        fleet = Fleet(
            {name: watch.node for name, watch in watches.items()},
            self.decided.draining & watches.keys() | says_so,
            models(watches),
            self.decided.withdrawn,
            is_up=any(watch.is_up for watch in watches.values()),
            unapplied=self.unapplied,
            is_shut=self.is_shut or (LISTENERS in self._unaccepted and self.settings.keys != self._keys),
            rejected=self._unaccepted,
        )
        if fleet.problem != self.fleet.problem:
            logger.error("%s", fleet.problem or "works as configured again")
        served, canaries = fleet.models, {}
        for name, canary in self.canaries().items():
            # A version that has gone gets no requests.
            if name in served and (version := served[name].find(canary.version)) is not None:
                canaries[name] = replace(canary, version=version)
        fleet = replace(fleet, canaries=canaries)
        if fleet != self.fleet:
            self._changed.set()
        self.fleet = fleet

    def canaries(self) -> dict[str, Canary]:
        """Return those of gateway.yaml, and in their place those of the control port, by the model's name."""
        return {**self.settings.canaries, **self.decided.canaries}

    async def write(self) -> None:
        """Write Envoy's files of what is known and decided now, and wait until Envoy has read them."""
        self.update()
        async with self._writing:
            self._changed.clear()
            if files.has_room(self.fleet):
                await asyncio.to_thread(files.write, self.settings, self.fleet, self._run)
                write_known(self._run / KNOWN, self.watches.values())
                node_files.replace(self._run / PROBLEM, self.fleet.problem)
                self._unaccepted = await self._confirm()
            else:
                # Envoy would abort. It serves on as it was configured last, and its probes fail.
                await asyncio.to_thread(files.settle, self._run, (), files.ROUTE_FILES)
                self._unaccepted = frozenset({CLUSTERS})
            if LISTENERS not in self._unaccepted:
                self._keys = self.settings.keys
        self.update()

    async def apply(self) -> None:
        """Write what a request decided; RequestError if Envoy does not accept it."""
        await self.write()
        if self._unaccepted - {LISTENERS}:
            raise RequestError(503, f"it is decided and has no effect yet: {self.fleet.problem}")

    async def _confirm(self) -> frozenset[str]:
        """Return the files that Envoy does not accept, in whose place it gets what it accepted before."""
        names, deadline = files.statistics(self.fleet), time.monotonic() + CONFIRM_S
        while True:
            # No Envoy: it starts with these files.
            if (versions := await self._ask_envoy(self._envoy.versions)) is None:
                return frozenset()
            found = await asyncio.to_thread(files.written, self._run, names)
            other = {name for name, version in found.items() if versions.get(names[name], version) != version}
            if not other or time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_S)
        await asyncio.to_thread(files.settle, self._run, found.keys() - other, other)
        return frozenset(other)

    async def scrape(self, age_s: float = 0.0) -> None:
        """Take in the nodes' counters, unless that was done within the last `age_s`."""
        await self.traffic.scrape(self.session, self.fleet, age_s)

    async def endpoints(self) -> Endpoints | None:
        """Return what Envoy has at each node; None where Envoy does not answer."""
        return await self._ask_envoy(self._envoy.endpoints)

    async def envoy_metrics(self) -> str:
        """Return Envoy's own metrics; nothing where it does not answer."""
        return await self._ask_envoy(self._envoy.prometheus) or ""

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
                async with self._writing:
                    # An Envoy that has started again may reject what was written before, and may accept it later.
                    if self._unaccepted or await self._confirm():
                        self._changed.set()
            except Exception:
                logger.exception("scrape")
            await asyncio.sleep(SCRAPE_S)


GATEWAY = web.AppKey("gateway", Gateway)
