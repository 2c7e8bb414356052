"""The gateway's control API: drain nodes, try canaries, withdraw models and versions.

It listens on loopback of the gateway's machine, for operators, and raises the errors of `Management`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from torchserve_client.errors import ClientError, ManagementError
from torchserve_client.management import Api
from torchserve_client.payloads import Json
from torchserve_client.transport import path_of

DEFAULT_URL = "http://127.0.0.1:8003"  # its address, unless gateway.yaml sets another one
PROBE_S = 2.0  # seconds for the response at the default address, where another program may listen
MOMENT_S = 1.0  # seconds until a decision is in effect for all requests: Envoy reloads its files within milliseconds


@dataclass(frozen=True, slots=True)
class NodeState:
    """The gateway's view of a node.

    Attributes:
        name: name of the node.
        is_draining: whether the gateway sends it no new requests.
        is_routed: whether Envoy routes requests to it for every model that it serves.
        in_flight: requests without a response yet; None while the number is not known.
        management: address of its management API in the gateway's settings; empty if the gateway reports none.
    """

    name: str
    is_draining: bool
    is_routed: bool
    in_flight: int | None
    management: str


class Gateway(Api):
    """The control API of one gateway."""

    server = "gateway"

    def nodes(self) -> list[NodeState]:
        """Return the nodes.

        Raises:
            ManagementError: the response is not that of a gateway.
        """
        try:
            return [
                NodeState(
                    each["name"], each["is_draining"], each["is_routed"], each["in_flight"], each.get("management", "")
                )
                for each in self._call("GET", "/control/nodes")
            ]
        except (LookupError, TypeError) as error:
            raise ManagementError(f"{self.url}: not the response of a gateway") from error

    def node(self, name: str) -> NodeState:
        """Return the state of a node.

        Raises:
            ManagementError: status 404 if the gateway has no node with this name.
        """
        nodes = {node.name: node for node in self.nodes()}
        if name not in nodes:
            raise ManagementError(f"the gateway has no node {name}; its nodes: {', '.join(nodes) or 'none'}", 404)
        return nodes[name]

    def drain(self, name: str, is_draining: bool = True) -> None:
        """Stop sending new requests to a node, or resume.

        Args:
            name: name of the node.
            is_draining: False resumes.

        Raises:
            ManagementError: status 404 if the gateway has no node with this name.
        """
        self._call("PUT", path_of("control", "nodes", name), {"draining": is_draining})

    def canary(self, model: str) -> Json | None:
        """Return version, percent and header of a model's canary; None without a canary.

        Raises:
            ManagementError: the gateway does not respond or refuses.
        """
        try:
            found: Json = self._call("GET", path_of("control", "canaries", model))
        except ManagementError as error:
            if error.status != 404:
                raise
            return None
        return found

    def set_canary(self, model: str, version: str, percent: float, header: tuple[str, str] | None = None) -> None:
        """Route a share of the requests without a version to one version.

        Args:
            model: the model's name.
            version: the version, registered on some node.
            percent: share of the requests, 0 to 100.
            header: name and value; all requests with this header go to the version.

        Raises:
            ManagementError: status 404 until the gateway has seen the version.
        """
        document = {"version": version, "percent": percent, "header": list(header) if header else None}
        self._call("PUT", path_of("control", "canaries", model), document)

    def end_canary(self, model: str) -> None:
        """Route all requests without a version to the default version again.

        Raises:
            ManagementError: status 404 if the model has no canary.
        """
        self._call("DELETE", path_of("control", "canaries", model))

    def in_flight(self, model: str, version: str | None = None) -> int | None:
        """Count the requests on all nodes without a response yet.

        Args:
            model: the model's name.
            version: the version; None means all versions together.

        Returns:
            The number; None while the gateway does not know it.

        Raises:
            ManagementError: status 404 if no node has the version.
        """
        count = self._call("GET", path_of("control", "models", model), version=version)["in_flight"]
        return None if count is None else int(count)

    def withdraw(self, model: str, version: str | None = None, *, is_withdrawn: bool = True) -> None:
        """Stop routing to a model or version that is still registered, or resume; clients get 404.

        Args:
            model: the model's name.
            version: the version; None means every version that is registered now.
            is_withdrawn: False resumes; if no node has the version, the gateway also forgets it.

        Raises:
            ManagementError: status 404 if no node has the version, 400 if it is the default one of several.
        """
        self._call("PUT", path_of("control", "models", model), {"version": version, "withdrawn": is_withdrawn})


def find_gateway(management_urls: Collection[str], url: str | None) -> Gateway | None:
    """Return the gateway that has exactly these nodes, or no others at `url`; None without one."""
    gateway = Gateway(url or DEFAULT_URL, timeout_s=30.0 if url else PROBE_S)
    try:
        theirs = {_host_and_port(node.management) for node in gateway.nodes() if node.management}
    except ClientError:
        if url:
            raise
        return None
    finally:
        gateway.close()
    ours = set(map(_host_and_port, management_urls))
    # A gateway that finds its nodes by DNS may know them under other addresses.
    is_theirs = not (theirs & ours and theirs - ours) if url else bool(theirs) and theirs <= ours
    return Gateway(gateway.url) if is_theirs else None


def _host_and_port(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url)
    host = (parts.hostname or "").replace("localhost", "127.0.0.1")
    return host, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
