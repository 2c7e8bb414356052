"""The state of the control process, and its periodic tasks.

gateway.yaml, nodes.json ─> settings, a Watch for each node ──┐
operators ─> Decisions, saved in a file ──────────────────────┴> Fleet ─> Envoy's files
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

from deploy.gateway.envoy import files
from deploy.gateway.envoy.clusters import list_clusters, name_cluster
from deploy.gateway.envoy.listeners import KEYS, LISTENERS, RATES, read_authority
from deploy.gateway.envoy.process import POLL_S, Endpoints, Envoy
from deploy.gateway.settings import Canary, GatewaySettings, Key
from deploy.gateway.state import Fleet, choose_spaces
from deploy.gateway.supervisor import PROBLEM
from deploy.gateway.traffic import Traffic
from deploy.gateway.watch import Watch, merge_models, read_known, read_saved, write_known
from deploy.nodes.run.node import Node, replace_file
from deploy.protocol.deep import Checks
from deploy.protocol.errors import RequestError
from handlers.config import SETTINGS

logger = logging.getLogger(__name__)

T = TypeVar("T")

SCRAPE_S = 2.0  # seconds between two scrapes of all nodes
FIRST_POLL_S = 3.0  # timeout of the first poll of the nodes; a node that has not answered keeps its saved models
SETTLE_S = 0.1  # seconds in which changes are collected before a write: one round of polls often finds several
CONFIRM_S = 5.0  # seconds in which Envoy must have read its files
RETRY_S = 2.0  # seconds between two attempts to write Envoy's files
UNROUTED = {LISTENERS, KEYS, RATES}  # files that decide about clients, not about nodes
KNOWN = "known.json"  # file of the registered models of the nodes
DECISIONS = "decisions.json"  # file of operators' decisions


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Decisions:
    """Operators' decisions about nodes, versions and models; they outlive the process."""

    draining: frozenset[str] = frozenset()
    withdrawn: frozenset[tuple[str, str]] = frozenset()
    canaries: dict[str, Canary] = Field(default_factory=dict)
    spaces: frozenset[tuple[str, str, str]] = frozenset()  # of `vector_space: one`: model, version, space


DECISIONS_TYPE = TypeAdapter(Decisions)


class Control:
    def __init__(self, settings: GatewaySettings, nodes: Sequence[Node], envoy: Envoy, state_dir: Path) -> None:
        self.settings = settings
        self.watches: dict[str, Watch] = {}
        self.decisions = read_saved(state_dir / DECISIONS, DECISIONS_TYPE, Decisions())
        self.fleet = Fleet()
        # The problem of gateway.yaml (`Configuration`).
        self.unapplied, self.is_shut = "", False
        self.traffic, self.checks = Traffic(), Checks()
        self.session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        self._envoy, self._state_dir = envoy, state_dir
        self._known = read_known(state_dir / KNOWN)
        self._rejected: frozenset[str] = frozenset()  # the files that Envoy has not accepted
        # The clusters whose files it has accepted, and the ready ones with a node that it found healthy since.
        self._accepted, self._routed = set[str](), set[str]()
        self._mixed: set[tuple[str, str, str]] = set()  # versions with vectors of several spaces, and their own one
        self._keys: tuple[Key, ...] | None = None  # the keys that Envoy has accepted; None until it has
        self._authority = ""  # the digest of the client_ca that Envoy has accepted
        self._changed = asyncio.Event()
        self._writing = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._watch(nodes)

    async def start(self) -> None:
        """Poll the nodes, configure Envoy, and start the periodic tasks."""
        with suppress(OSError):
            # Keys that were removed meanwhile do not wait for the nodes.
            files.write_filters(self.settings, self.fleet, self._state_dir)
        await self.poll(FIRST_POLL_S)
        try:
            await self.write()
        except OSError:  # a full disk: Envoy serves with its last configuration, and the write is tried again
            self._accepted = list_clusters(self.fleet)
        self._changed.set()
        self._tasks = [asyncio.create_task(each) for each in (self._write(), self._scrape())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for watch in self.watches.values():
            watch.close()
        await self.session.close()

    def configure(self, settings: GatewaySettings, nodes: Sequence[Node]) -> None:
        """Use other settings and nodes; a removed node that is added again does not drain."""
        self.settings = settings
        self.decide(draining=self.decisions.draining & {node.name for node in nodes})
        self._watch(nodes)
        self._changed.set()

    def _watch(self, nodes: Iterable[Node]) -> None:
        """Watch only these nodes from now on."""
        wanted = {node.name: node for node in nodes}
        for name, watch in list(self.watches.items()):
            if wanted.get(name) != watch.node:
                self.watches.pop(name).close()
        for name, node in wanted.items():
            if name not in self.watches:
                self.watches[name] = Watch(node, self.session, self.update, self._known.pop(node, {}))
        self.update()

    async def poll(self, timeout_s: float | None = None) -> None:
        """Poll every node now; without a timeout wait for the slowest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(watch.poll() for watch in self.watches.values()))

    def decide(self, **parts: Any) -> None:
        """Replace parts of the decisions; save them first, so that a restart loses nothing."""
        decisions = replace(self.decisions, **parts)
        if decisions != self.decisions:
            replace_file(self._state_dir / DECISIONS, DECISIONS_TYPE.dump_json(decisions, indent=1).decode())
            self.decisions = decisions

    def update(self) -> None:
        """Rebuild the fleet; a difference schedules a write of Envoy's files."""
        watches = self.watches
        for watch in watches.values():
            watch.forget(self.decisions.withdrawn)  # an operator unregisters a version that is not restored
        if watches and all(watch.is_listed for watch in watches.values()):
            # A version that is registered again after its withdrawal is served.
            registered = {key for watch in watches.values() for key in watch.models}
            self.decide(withdrawn=self.decisions.withdrawn & registered)
        models = choose_spaces(merge_models(watches), self.settings.vector_space, self.decisions.spaces)
        if self.settings.vector_space == "one":
            pairs = ((name, version) for name, model in models.items() for version in model.versions.values())
            self.decide(spaces=frozenset((name, each.version, each.space) for name, each in pairs if each.space))
        reported = {name for name, watch in watches.items() if watch.is_draining}
        authority = read_authority(self.settings.tls)
        fleet = Fleet(
            {name: watch.node for name, watch in watches.items()},
            self.decisions.draining & watches.keys() | reported,
            models,
            self.decisions.withdrawn,
            is_up=any(watch.is_up for watch in watches.values()),
            unapplied=self.unapplied,
            is_shut=self.is_shut or (KEYS in self._rejected and self.settings.keys != self._keys),
            rejected=self._rejected,
            authorities=(authority, *{self._authority} - {authority, ""}) if authority else (),
        )
        if fleet.problem != self.fleet.problem:
            logger.error("%s", fleet.problem or "works as configured again")
        self._report_spaces(fleet)
        served, canaries = fleet.models, {}
        for name, canary in self.canaries().items():
            # An unregistered version receives no requests.
            if name in served and (version := served[name].find(canary.version)) is not None:
                canaries[name] = replace(canary, version=version)
        fleet = replace(fleet, canaries=canaries)
        if fleet != self.fleet:
            self._changed.set()
        self.fleet = fleet
        self._routed &= list_clusters(fleet, is_ready_only=True)

    def _report_spaces(self, fleet: Fleet) -> None:
        """Log each version once whose nodes return vectors of several spaces, such as in bf16 and in fp32."""
        mixed = {
            (name, number, version.space): version.spaces
            for name, model in fleet.registered.items()
            for number, version in model.versions.items()
            if len({*version.spaces.values(), version.space} - {""}) > 1
        }
        for name, number, space in mixed.keys() - self._mixed:
            found = ", ".join(f"{node} {each}" for node, each in sorted(mixed[name, number, space].items()))
            advice = f"only nodes of {space} get requests" if space else "do not mix them"
            logger.warning("%s %s: vectors of several spaces, %s: %s", name, number, advice, found)
        self._mixed = {*mixed}

    def canaries(self) -> dict[str, Canary]:
        """Return the canaries by the model's name; those of the control port replace those of gateway.yaml."""
        return {**self.settings.canaries, **self.decisions.canaries}

    async def write(self) -> None:
        """Write Envoy's files for the current state, and wait until Envoy has read them."""
        self.update()
        async with self._writing:
            self._changed.clear()
            settings, fleet = self.settings, self.fleet
            await asyncio.to_thread(files.write, settings, fleet, self._state_dir)
            write_known(self._state_dir / KNOWN, self.watches.values())
            self._rejected = await self._confirm()
            if not self._rejected - UNROUTED:
                self._accepted = list_clusters(fleet)
            if KEYS not in self._rejected:
                self._keys = settings.keys
            if LISTENERS not in self._rejected:
                # The next write refuses connections of a former one.
                self._authority = "".join(fleet.authorities[:1])
        self.update()
        replace_file(self._state_dir / PROBLEM, self.fleet.problem)

    async def apply(self) -> None:
        """Write a decision; raise RequestError if Envoy does not accept it."""
        await self.write()
        if self._rejected - UNROUTED:
            raise RequestError(503, f"the decision is saved and has no effect yet: {self.fleet.problem}")

    async def _confirm(self) -> frozenset[str]:
        """Return the files that Envoy does not accept, and restore their last accepted versions."""
        statistics, deadline = files.list_statistics(self.fleet), time.monotonic() + CONFIRM_S
        while True:
            # Envoy does not run; it will start with these files.
            if (versions := await self._ask_envoy(self._envoy.versions)) is None:
                return frozenset()
            found = await asyncio.to_thread(files.read_versions, self._state_dir, {*statistics.values()})
            known = [(file, versions[name]) for name, file in statistics.items() if file in found and name in versions]
            other = {file for file, version in known if version != found[file]}
            if not other or time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_S)
        await asyncio.to_thread(files.keep_accepted, self._state_dir, found.keys() - other, other)
        return frozenset(other)

    async def scrape(self, age_s: float = 0.0) -> None:
        """Scrape the nodes, unless the last scrape is younger than `age_s`."""
        await self.traffic.scrape(self.session, self.fleet, age_s)

    async def endpoints(self) -> Endpoints | None:
        """Return Envoy's state of each node; None if Envoy does not answer."""
        return await self._ask_envoy(self._envoy.endpoints)

    async def is_routed(self, model: str, version: str | None = None) -> bool:
        """Whether Envoy sends requests of a ready model, or of a version, to a node: it has to check the node first."""
        cluster = name_cluster(model, version)
        if cluster in self._accepted - self._routed and (found := await self.endpoints()):
            self._routed |= {name for name, on in found.items() if any(each.is_healthy for each in on.values())}
            self._routed &= list_clusters(self.fleet, is_ready_only=True)
        return cluster in self._routed

    async def envoy_metrics(self) -> str:
        """Return Envoy's own metrics; "" if it does not answer."""
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
                logger.exception("Envoy's files could not be written")  # Envoy serves with its last configuration
                self._changed.set()
                await asyncio.sleep(RETRY_S)

    async def _scrape(self) -> None:
        while True:
            try:
                await self.scrape()
                async with self._writing:
                    # A restarted Envoy may reject files that were accepted before, and may accept them later.
                    if self._rejected or await self._confirm():
                        self._changed.set()
            except Exception:
                logger.exception("scrape")
            await asyncio.sleep(SCRAPE_S)


GATEWAY = web.AppKey("gateway", Control)
