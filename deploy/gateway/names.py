"""Nodes that are found by a name: every address that it resolves to is one.

    gateway.yaml: discover -> Names, a thread: getaddrinfo every two seconds -> addresses -> nodes

A name server may take its time, so nobody waits for it but the thread. A name that does not resolve for a moment keeps
the addresses that it had.
"""

import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Iterable

from deploy.gateway.settings import Discover
from deploy.run.node import Node

logger = logging.getLogger(__name__)

# Seconds between two lookups.
LOOK_S = 2.0

FAMILIES = (socket.AF_INET, socket.AF_INET6)

# From a name to addresses. Raises OSError where it is not known.
Lookup = Callable[[str], Iterable[str]]


def lookup(host: str) -> list[str]:
    """Ask the system's resolver: IPv4 addresses, or where there are none IPv6 ones.

    A machine with both is one node, not two.

    Raises:
        OSError: the name is not known, or nobody answers.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = {
        family: {str(each[4][0]) for each in found if each[0] == family and "%" not in str(each[4][0])}
        for family in FAMILIES
    }
    return sorted(addresses[socket.AF_INET] or addresses[socket.AF_INET6])


class _Following:
    """One name, resolved in a thread until told to end."""

    def __init__(self, host: str, lookup: Lookup, look_s: float) -> None:
        self.host = host
        self.found: tuple[str, ...] | None = None
        self.is_tried, self.is_over = threading.Event(), threading.Event()
        self._lookup = lookup
        self._look_s = look_s
        # A lookup may take longer than the process has to end.
        threading.Thread(target=self._run, name="names", daemon=True).start()

    def _run(self) -> None:
        problem = ""
        while not self.is_over.is_set():
            try:
                found, said = tuple(sorted(set(self._lookup(self.host)))), ""
            except OSError as error:
                found, said = (), f"{error.strerror or type(error).__name__}; what was known stays"
            if said and said != problem and not self.is_over.is_set():
                logger.warning("%s does not resolve: %s", self.host, said)
            problem = said
            if found:
                self.found = found
            self.is_tried.set()
            self.is_over.wait(self._look_s)


class Names:
    """The addresses of one name at a time, as they were last."""

    def __init__(self, lookup: Lookup = lookup, look_s: float = LOOK_S) -> None:
        """Resolve nothing yet.

        Args:
            lookup: from a name to its addresses.
            look_s: seconds between two lookups.
        """
        self._lookup = lookup
        self._look_s = look_s
        self._following: _Following | None = None

    @property
    def found(self) -> tuple[str, ...] | None:
        """The addresses, sorted; None where the name has not been resolved yet."""
        return None if self._following is None else self._following.found

    def nodes(self, discover: Discover | None, wait_s: float = 0.0) -> tuple[Node, ...] | None:
        """Give the nodes of a name, and resolve it from now on; None where it has not been resolved yet.

        Args:
            discover: the name; None to resolve nothing more.
            wait_s: seconds that the first answer may take.
        """
        if self._following is not None and (discover is None or discover.host != self._following.host):
            self.close()
        if discover is None:
            return None
        if self._following is None:
            self._following = _Following(discover.host, self._lookup, self._look_s)
        self._following.is_tried.wait(wait_s)
        found = self._following.found
        return None if found is None else tuple(node_at(address, discover.port) for address in found)

    def close(self) -> None:
        """Resolve nothing more; does not wait for an answer that is due."""
        if self._following is not None:
            self._following.is_over.set()
            self._following = None


def node_at(address: str, port: int) -> Node:
    """Make a node of an address behind which a node's own Envoy listens; 10.0.0.7 is `10-0-0-7`."""
    at = ipaddress.ip_address(address)
    name = at.exploded.replace(".", "-").replace(":", "-")
    url = f"http://[{at}]:{port}" if at.version == 6 else f"http://{at}:{port}"
    return Node(name=name, inference=url, management=url, metrics=url)
