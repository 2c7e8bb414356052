"""The files that configure the gateway, read anew when they change.

gateway.yaml ──────────────────────────────────────────────> Settings
its nodes, or the addresses of its name, or nodes.json ────> nodes
"""

import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from deploy.gateway import settings as gateway_settings
from deploy.gateway.settings import Settings
from deploy.run import node as node_files
from deploy.run.node import Node, NoNodes
from handlers.errors import InvalidConfig

logger = logging.getLogger(__name__)

Lookup = Callable[[str], Iterable[str]]


def lookup(host: str) -> list[str]:
    """Return the addresses of a host, by the system's resolver: IPv4, or IPv6 where there is no IPv4.

    A machine with both is one node, not two.

    Raises:
        OSError: the name is not known, or no name server answers.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = {
        family: {str(each[4][0]) for each in found if each[0] == family and "%" not in str(each[4][0])}
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    return sorted(addresses[socket.AF_INET] or addresses[socket.AF_INET6])


class Configuration:
    """Settings and nodes, as files have them."""

    def __init__(self, config: Path, nodes: Path, known: Sequence[Node] = (), lookup: Lookup = lookup) -> None:
        """Read nothing yet.

        Args:
            config: gateway.yaml.
            nodes: nodes.json, written by what starts nodes on this machine.
            known: the nodes of a name that has not been resolved yet.
            lookup: from a name to its addresses; a test brings its own.
        """
        self._config, self._nodes, self._lookup = config, nodes, lookup
        self._settings: Settings | None = None
        self._current = tuple(known)
        self._problem = ""

    def read(self) -> tuple[Settings, tuple[Node, ...]]:
        """Read both; where nodes have a name this takes as long as a name server.

        Raises:
            InvalidConfig: one of them is not as it should be.
            OSError: gateway.yaml cannot be read.
        """
        settings, nodes, problems = gateway_settings.read(self._config), self._current, []
        if self._settings is not None and settings.ports != self._settings.ports:
            problems.append(f"{self._config.name}: ports change when the gateway is started anew")
            settings = replace(settings, ports=self._settings.ports)
        if settings.discover is None:
            try:
                nodes = settings.nodes or tuple(node_files.read(self._nodes))
            except NoNodes as error:
                raise InvalidConfig(str(error)) from None
        else:
            host, port = settings.discover.host, settings.discover.port
            try:
                nodes = tuple(node_at(address, port) for address in sorted(set(self._lookup(host)))) or nodes
            except OSError as error:
                reason = error.strerror or type(error).__name__
                problems.append(f"{host} does not resolve: {reason}; the nodes that were known stay")
        self._log("; ".join(problems))
        self._settings, self._current = settings, nodes
        return settings, nodes

    def changed(self) -> tuple[Settings, tuple[Node, ...]] | None:
        """Read both; None where all stays, or where they cannot be read, which is logged."""
        before = self._settings, self._current
        try:
            after = self.read()
        except (InvalidConfig, OSError) as error:
            self._log(f"{error}; what was read before stays")
            return None
        if after == before:
            return None
        logger.info("read anew; nodes: %s", ", ".join(node.name for node in after[1]))
        return after

    def _log(self, problem: str) -> None:
        """Log a problem once, however often it is found."""
        if problem and problem != self._problem:
            logger.error("%s", problem)
        self._problem = problem


def node_at(address: str, port: int) -> Node:
    """Make a node of an address behind which a node's own Envoy listens; 10.0.0.7 is `10-0-0-7`."""
    at = ipaddress.ip_address(address)
    name = at.exploded.replace(".", "-").replace(":", "-")
    url = f"http://[{at}]:{port}" if at.version == 6 else f"http://{at}:{port}"
    return Node(name=name, inference=url, management=url, metrics=url)
