"""The gateway's control API: nodes that are taken out, canaries, models and versions that are withdrawn.

It listens on loopback of the gateway's machine, for operators. Its errors are those of `Management`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from torchserve_client.errors import ClientError, ManagementError
from torchserve_client.management import Api

# Where it listens unless gateway.yaml says otherwise.
DEFAULT_URL = "http://127.0.0.1:8003"
# Seconds for an answer of a gateway that was not named: another program may listen there.
PROBE_S = 2.0
# Seconds until nothing new arrives after a decision: Envoy reads its files anew within milliseconds.
MOMENT_S = 1.0


@dataclass(frozen=True, slots=True)
class NodeState:
    """What the gateway says of a node.

    Attributes:
        name: the node's.
        is_draining: whether it gets no new requests.
        is_routed: whether it gets requests, for every model that it serves: Envoy itself has found them READY.
        in_flight: requests that it has not answered yet; None while that is not known.
        management: the address of its management API, as the gateway has it; empty where it does not say.
    """

    name: str
    is_draining: bool
    is_routed: bool
    in_flight: int | None
    management: str


class Gateway(Api):
    """One gateway's control API."""

    server = "gateway"

    def nodes(self) -> list[NodeState]:
        """List the nodes.

        Raises:
            ManagementError: what answers is no gateway.
        """
        try:
            return [
                NodeState(
                    each["name"], each["is_draining"], each["is_routed"], each["in_flight"], each.get("management", "")
                )
                for each in self._call("GET", "/control/nodes")
            ]
        except (LookupError, TypeError) as error:
            raise ManagementError(f"{self.url}: no gateway's answer") from error

    def node(self, name: str) -> NodeState:
        """Describe a node.

        Raises:
            ManagementError: status 404 when the gateway has none of that name.
        """
        nodes = {node.name: node for node in self.nodes()}
        if name not in nodes:
            raise ManagementError(f"no node {name}; known are {', '.join(nodes) or 'none'}", 404)
        return nodes[name]

    def drain(self, name: str, is_draining: bool = True) -> None:
        """Send a node no new requests from now on, or let it get some again."""
        self._call("PUT", _path("nodes", name), {"draining": is_draining})

    def canary(self, model: str) -> dict[str, Any] | None:
        """Describe a model's canary: version, percent, header; None where it has none."""
        try:
            found: dict[str, Any] = self._call("GET", _path("canaries", model))
        except ManagementError as error:
            if error.status != 404:
                raise
            return None
        return found

    def set_canary(self, model: str, version: str, percent: float, header: tuple[str, str] | None = None) -> None:
        """Send a version a share of the requests that name no version.

        Args:
            model: the model's name.
            version: the version, registered on some node.
            percent: its share, 0 to 100.
            header: name and value; requests that carry it go there, whatever the share.

        Raises:
            ManagementError: status 404 while the gateway has not seen the version.
        """
        document = {"version": version, "percent": percent, "header": list(header) if header else None}
        self._call("PUT", _path("canaries", model), document)

    def end_canary(self, model: str) -> None:
        """Send everything to the default version again."""
        self._call("DELETE", _path("canaries", model))

    def in_flight(self, model: str, version: str | None = None) -> int | None:
        """Count the requests on all nodes that have no answer yet; None while the gateway does not know the number.

        Args:
            model: the model's name.
            version: the version; None means all versions together.

        Raises:
            ManagementError: status 404 when no node has it.
        """
        count = self._call("GET", _path("models", model), version=version)["in_flight"]
        return None if count is None else int(count)

    def withdraw(self, model: str, version: str | None = None, *, is_withdrawn: bool = True) -> None:
        """Send no new requests to a model, or to one version, while it is registered; clients get 404.

        Args:
            model: the model's name.
            version: the version; None means every version that is registered now.
            is_withdrawn: False sends them again; where no node has the version, it is forgotten with a 404.

        Raises:
            ManagementError: status 404 when no node has it, 400 when the version is the default one of several.
        """
        self._call("PUT", _path("models", model), {"version": version, "withdrawn": is_withdrawn})


def in_front_of(urls: Collection[str], named: str | None) -> Gateway | None:
    """Return the gateway in front of nodes.

    Args:
        urls: the management APIs of the nodes.
        named: its control API; None means the usual address, where a gateway counts only if it has no other nodes.

    Returns:
        None where there is none, or where it is known to have other nodes beside these, which would serve on.

    Raises:
        ManagementError: the gateway that was named does not answer, or is none.
    """
    gateway = Gateway(named or DEFAULT_URL, timeout_s=30.0 if named else PROBE_S)
    try:
        theirs = {_place(node.management) for node in gateway.nodes() if node.management}
    except ClientError:
        if named:
            raise
        return None
    finally:
        gateway.close()
    ours = {_place(url) for url in urls}
    # A gateway that finds its nodes by a name may know them under other addresses.
    is_theirs = not (theirs & ours and theirs - ours) if named else bool(theirs) and theirs <= ours
    return Gateway(gateway.url) if is_theirs else None


def _place(url: str) -> tuple[str, int | None]:
    """Return host and port, which tell one server from another."""
    parts = urlsplit(url)
    host = (parts.hostname or "").replace("localhost", "127.0.0.1")
    return host, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _path(what: str, name: str) -> str:
    return f"/control/{what}/{quote(name, safe='')}"
