"""Calls the gateway's control API: nodes that are taken out, canaries, models and versions that are withdrawn.

It listens on loopback of the gateway's machine, port 8003, and is for whoever runs the servers. Its errors are
ManagementError, with the gateway's own words, and Unreachable.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from torchserve_client.errors import DeadlineExceeded, ManagementError, NoConnection, Unreachable
from torchserve_client.transport import Outgoing, PooledTransport, Transport

# Where it listens unless gateway.yaml says otherwise.
DEFAULT_URL = "http://127.0.0.1:8003"


@dataclass(frozen=True, slots=True)
class NodeState:
    """What the gateway says of a node.

    Attributes:
        name: the node's.
        is_up: whether its management API answers.
        is_draining: whether it gets no new requests.
        is_routed: whether it gets requests, for every model that it serves: Envoy itself has found them READY.
        in_flight: requests that it has not answered yet; None while that is not known.
        management: the address of its management API, as the gateway has it.
    """

    name: str
    is_up: bool
    is_draining: bool
    is_routed: bool
    in_flight: int | None
    management: str = ""


@dataclass(frozen=True, slots=True)
class ModelState:
    """What the gateway says of a model, or of one version of it.

    Attributes:
        model: its name.
        version: None for all versions together.
        is_withdrawn: whether it gets no new requests, though it is registered.
        in_flight: requests on all nodes that have no answer yet; None while that is not known.
    """

    model: str
    version: str | None
    is_withdrawn: bool
    in_flight: int | None


class Gateway:
    """Calls one gateway's control API."""

    def __init__(self, url: str, *, timeout_s: float = 10.0, transport: Transport | None = None) -> None:
        """Address a gateway.

        Args:
            url: address of the control API, DEFAULT_URL where gateway.yaml says nothing else.
            timeout_s: deadline of each call in seconds.
            transport: carries the calls; a test brings one that uses no sockets.
        """
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._transport = transport or PooledTransport(connections=1)

    def nodes(self) -> list[NodeState]:
        """List the nodes."""
        return [_state(each) for each in self._call("GET", "/control/nodes")]

    def node(self, name: str) -> NodeState:
        """Describe a node.

        Raises:
            ManagementError: status 404 when the gateway has none of that name.
        """
        nodes = self.nodes()
        for each in nodes:
            if each.name == name:
                return each
        raise ManagementError(f"no node {name}; known are {', '.join(each.name for each in nodes) or 'none'}", 404)

    def drain(self, name: str, is_draining: bool = True) -> None:
        """Send a node no new requests from now on, or let it get some again."""
        self._call("PUT", f"/control/nodes/{quote(name, safe='')}", {"draining": is_draining})

    def canary(self, model: str) -> dict[str, Any] | None:
        """Describe a model's canary: version, percent, header; None where it has none."""
        try:
            found: dict[str, Any] = self._call("GET", _canary(model))
        except ManagementError as error:
            if error.status != 404:
                raise
            return None
        return found

    def set_canary(self, model: str, version: str, percent: float, header: tuple[str, str] | None = None) -> None:
        """Give a version a share of what asks for a model without naming a version.

        Args:
            model: the model's name.
            version: the version, registered on some node.
            percent: its share, 0 to 100.
            header: name and value; requests that carry it go there, whatever the share.

        Raises:
            ManagementError: status 404 while the gateway has not seen the version.
        """
        document = {"version": version, "percent": percent, "header": list(header) if header else None}
        self._call("PUT", _canary(model), document)

    def end_canary(self, model: str) -> None:
        """Send everything to the default version again."""
        self._call("DELETE", _canary(model))

    def model(self, model: str, version: str | None = None) -> ModelState:
        """Describe a model, or one version of it.

        Raises:
            ManagementError: status 404 when no node has it.
        """
        query = "" if version is None else f"?{urlencode({'version': version})}"
        return _model_state(self._call("GET", f"{_model(model)}{query}"))

    def withdraw(self, model: str, version: str | None = None) -> ModelState:
        """Send no new requests to a model, or to one version, while it is registered; clients get 404.

        Args:
            model: the model's name.
            version: the version; None for every version that is registered now.

        Raises:
            ManagementError: status 404 when no node has it, 400 when the version is the default one of several.
        """
        return _model_state(self._call("PUT", _model(model), {"version": version, "withdrawn": True}))

    def restore(self, model: str, version: str | None = None) -> ModelState:
        """Undo `withdraw`.

        Raises:
            ManagementError: status 404 when no node has it; that it was withdrawn is forgotten all the same.
        """
        return _model_state(self._call("PUT", _model(model), {"version": version, "withdrawn": False}))

    def close(self) -> None:
        """Let go of every connection."""
        self._transport.close()

    def _call(self, method: str, path: str, document: Any = None) -> Any:
        body = b"" if document is None else orjson.dumps(document)
        headers = {"Content-Type": "application/json"} if body else {}
        request = Outgoing(method, f"{self.url}{path}", headers=headers, body=body)
        try:
            incoming = self._transport.send(request, self._timeout_s)
        except (NoConnection, DeadlineExceeded) as error:
            raise Unreachable(f"no gateway answers at {self.url} ({error.type})") from error
        try:
            answer = orjson.loads(incoming.body)
        except orjson.JSONDecodeError:
            answer = None
        if incoming.status >= 400:
            said = answer if isinstance(answer, dict) else {}
            words = said.get("message") or said.get("error") or incoming.reason
            raise ManagementError(str(words), incoming.status, str(said.get("type", "")))
        return answer


def _canary(model: str) -> str:
    return f"/control/canaries/{quote(model, safe='')}"


def _model(model: str) -> str:
    return f"/control/models/{quote(model, safe='')}"


def _model_state(document: dict[str, Any]) -> ModelState:
    version, in_flight = document["version"], document["in_flight"]
    return ModelState(
        str(document["model"]),
        None if version is None else str(version),
        bool(document["is_withdrawn"]),
        None if in_flight is None else int(in_flight),
    )


def _state(document: dict[str, Any]) -> NodeState:
    in_flight = document["in_flight"]
    return NodeState(
        str(document["name"]),
        document["state"] == "up",
        bool(document["is_draining"]),
        bool(document["is_routed"]),
        None if in_flight is None else int(in_flight),
        str(document.get("management", "")),
    )
