"""Follows gateway.yaml, its key file, nodes.json and the addresses of a name.

gateway.yaml ──────────────────────────────────────────────> GatewaySettings
its nodes, or the addresses of its name, or nodes.json ────> nodes

Files that change are read when they have not changed for a second. One may still be cut, so a setting that closes the
edge is removed by `NAME: none` or a restart only. Clients, and their rates, are removed by their removal.
"""

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from deploy.gateway.settings import GUARDS, NONE, GatewaySettings, Ports, make_settings, read_document
from deploy.gateway.watch import read_saved
from deploy.nodes.run.node import Node, read_nodes, replace_file
from handlers.errors import InvalidConfig
from torchserve_client.payloads import Json

logger = logging.getLogger(__name__)

# The file of the guards that the gateway has had since its start, which a new control process reads.
GUARDED = "guards.json"
# The settings file of the gateway's start, and its ports, which do not change until it ends.
STARTED, START = "started.json", TypeAdapter[tuple[Path, Ports] | None](tuple[Path, Ports])

# The place of a setting: ("limits", "headers").
Place = tuple[str, ...]
PLACES = TypeAdapter(set[Place])
Stats = list[tuple[int, int, int, int]]  # of each file
Resolver = Callable[[str], Iterable[str]]


def resolve_host(host: str) -> list[str]:
    """Return a host's IPv4 addresses, or else its IPv6 addresses, since a machine with both is one node."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = {
        family: {str(each[4][0]) for each in found if each[0] == family and "%" not in str(each[4][0])}
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    return sorted(addresses[socket.AF_INET] or addresses[socket.AF_INET6])


class Configuration:
    """Settings and nodes, followed through changes of their files."""

    def __init__(
        self,
        config: Path,
        nodes_file: Path,
        known: Sequence[Node] = (),
        resolve: Resolver = resolve_host,
        state_dir: Path | None = None,
    ) -> None:
        """Read nothing yet; `known` are the nodes until the name of `discover` is resolved."""
        self._config, self._nodes_file, self._resolve = config, nodes_file, resolve
        self._settings: GatewaySettings | None = None
        self._nodes = tuple(known)
        self.problem = ""  # why the last read failed, or found no nodes
        self.is_shut = False  # whether a file that cannot be applied may have other keys
        self._logged = ""
        self._guards_file = None if state_dir is None else state_dir / GUARDED
        self._guards: set[Place] = set()
        if self._guards_file and self._guards_file.exists():
            # A file that cannot be read may have named keys.
            self._guards = read_saved(self._guards_file, PLACES, {("keys",)})
        started = read_saved(state_dir / STARTED, START, None) if state_dir else None
        self._ports = started[1] if started else None
        self._has_other_ports = False
        # The settings as last parsed, with the times and sizes of their files.
        self._parsed: tuple[Stats, GatewaySettings] | None = None
        self._seen: Stats | None = None  # the times and sizes of the files at the last read

    def read(self) -> tuple[GatewaySettings, tuple[Node, ...]]:
        """Read both; with `discover` this may block for as long as a name server takes."""
        settings, nodes = self.parse(), self._nodes
        problems: list[str] = []
        broken = ""
        if self._has_other_ports:
            problems.append(f"{self._config.name}: ports change when the gateway is restarted")
        if settings.discover is None:
            try:
                nodes = settings.nodes or tuple(read_nodes(self._nodes_file))
            except (InvalidConfig, OSError) as error:
                broken = f"{error}; the known nodes stay"
                problems.append(broken)
        else:
            host, port = settings.discover.host, settings.discover.port
            try:
                nodes = tuple(make_node(address, port) for address in sorted(set(self._resolve(host)))) or nodes
            except OSError as error:
                reason = error.strerror or type(error).__name__
                problems.append(f"{host} does not resolve: {reason}; the known nodes stay")
        self._log("; ".join(problems))
        self._settings, self._nodes, self.problem = settings, nodes, broken
        return settings, nodes

    def parse(self) -> GatewaySettings:
        """Return the settings, parsed again only if a file has changed; raise InvalidConfig if one is cut."""
        found = self._stat_files()
        if self._parsed is not None and found == self._parsed[0]:
            return self._parsed[1]
        document = read_document(self._config)
        settings = make_settings(self._config, document)
        self._keep_guards(document)
        self._ports = self._ports or settings.ports
        self._has_other_ports = settings.ports != self._ports
        settings = replace(settings, ports=self._ports)
        self._parsed, self._seen = (found, settings), found
        return settings

    def _stat_files(self) -> Stats:
        named = self._parsed[1].key_file if self._parsed else None
        found = [path.stat() for path in (self._config, *([Path(named)] if named else []))]
        return [(each.st_mtime_ns, each.st_size, each.st_ino, each.st_mode) for each in found]

    def _keep_guards(self, document: Json) -> None:
        """Remember the guards; raise InvalidConfig if the file has lost one."""
        found = dict(_find_guards(document))
        inner = {place for place in self._guards - found.keys() if found.get(place[:-1], NONE) != NONE}
        if lost := sorted(map(".".join, inner)):
            raise InvalidConfig(
                f"{self._config.name}: has no {', '.join(lost)} any more; `{lost[0]}: {NONE}` or a restart removes it"
            )
        guards = {place for place, value in found.items() if place and value != NONE}
        if self._guards_file is not None and guards != self._guards:
            replace_file(self._guards_file, PLACES.dump_json(guards).decode())
        self._guards = guards

    def read_changes(self) -> tuple[GatewaySettings, tuple[Node, ...]] | None:
        """Read both; None without a change, if a file has just changed, or after a failure, which is logged."""
        before = self._settings, self._nodes
        try:
            if (found := self._stat_files()) != self._seen:
                self._seen = found  # an editor may still write
                return None
            after = self.read()
        except (InvalidConfig, OSError) as error:
            self.problem = f"{error}; the previous settings stay"
            self.is_shut = self._may_change_keys()
            self._log(self.problem)
            return None
        self.is_shut = False
        if after == before:
            return None
        logger.info("settings read; nodes: %s", ", ".join(node.name for node in after[1]))
        return after

    def _may_change_keys(self) -> bool:
        """Return whether the file has other keys than before; a file that cannot be read may have."""
        before = {(key.client, key.key) for key in self._settings.keys} if self._settings else set()
        try:
            keys = {(each["client"], each["key"]) for each in read_document(self._config).get("keys") or ()}
        except (InvalidConfig, OSError, LookupError, TypeError, AttributeError):
            return True
        return keys != before

    def _log(self, problem: str) -> None:
        """Log a problem once, until it changes."""
        if problem and problem != self._logged:
            logger.error("%s", problem)
        self._logged = problem


def _find_guards(value: object, place: Place = ()) -> Iterator[tuple[Place, object]]:
    """Yield the settings that close the edge, with their places and values."""
    yield place, value
    for name, each in value.items() if isinstance(value, dict) else ():
        if each and (place or name in GUARDS):
            yield from _find_guards(each, (*place, name))


def make_node(address: str, port: int) -> Node:
    """Make a node of the address of its Envoy; the name of 10.0.0.7 is `10-0-0-7`."""
    at = ipaddress.ip_address(address)
    name = at.exploded.replace(".", "-").replace(":", "-")
    url = f"http://[{at}]:{port}" if at.version == 6 else f"http://{at}:{port}"
    return Node(name=name, inference=url, management=url, metrics=url)
