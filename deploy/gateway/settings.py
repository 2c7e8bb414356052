"""The files that configure the gateway, read anew when they change.

gateway.yaml ──────────────────────────────────────────────> Settings
its nodes, or the addresses of its name, or nodes.json ────> nodes

docs/reference/gateway.md says what each setting is for, and deploy/gateway.yaml has all of them with their defaults.
"""

import ipaddress
import json
import logging
import socket
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from deploy.gateway.envoy.resources import passed_headers
from deploy.models import ROOT
from deploy.run.node import Node, NoNodes
from deploy.run.node import read as read_nodes
from handlers.config import SETTINGS, Count
from handlers.errors import InvalidConfig

logger = logging.getLogger(__name__)

CONFIG = ROOT / "deploy" / "gateway.yaml"
# What Envoy and the control process leave on disk: configuration, logs, what outlives a restart.
RUN = ROOT / ".gateway"

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
# A header as HTTP writes one: a token, and a value without controls at its ends.
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")]
HeaderValue = Annotated[str, Field(pattern=r"^[!-~]([ -~]{0,254}[!-~])?$")]
Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Ports:
    """Where the gateway listens; 8000 to 8002 are Triton's."""

    address: str = "127.0.0.1"
    http: Port = 8000
    grpc: Port = 8001
    metrics: Port = 8002
    control: Port = 8003
    probe: Port = 8004
    internal_address: str = "127.0.0.1"
    control_address: str = "127.0.0.1"


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Discover:
    """Nodes that are found by a name, each behind an Envoy of its own (`python -m deploy.container node`)."""

    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")]
    port: Port = 8085


@dataclass(frozen=True, config=SETTINGS)
class Canary:
    """The share of a model's traffic that one version gets, of requests that name no version.

    Requests with `header`, a name and a value, go there whatever the share.
    """

    version: Annotated[str, Field(min_length=1, max_length=64)]
    percent: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
    header: tuple[HeaderName, HeaderValue] | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Tls:
    """Certificates as PEM files; they are read anew when they are replaced (renamed over)."""

    certificate: str
    key: str
    client_ca: str | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Key:
    """A client's key, and how often it may call."""

    client: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    key: Annotated[str, Field(pattern=r"^[!-~]{16,256}$")]
    requests_per_second: Rate | None = None
    burst: Count | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Limits:
    """What one client may take, and how long."""

    body_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 32 << 20
    api_body_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 8 << 20
    form_bytes: Annotated[int, Field(ge=1, le=1 << 20)] = 64 << 10
    form_parts: Annotated[int, Field(ge=1, le=10_000)] = 200
    header_bytes: Annotated[int, Field(ge=1024, le=7 << 10)] = 7 << 10
    headers: Annotated[int, Field(ge=10, le=1000)] = 100
    header_s: Seconds = 10.0
    body_s: Seconds = 60.0
    idle_s: Seconds = 300.0
    response_s: Seconds = 120.0
    connections: Count = 4096
    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    attempt_connect_s: Seconds = 1.0
    unresponsive_s: Seconds = 5.0


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Settings:
    """All settings; `nodes` are those of this machine where there are none, and `canaries` are by the model's name."""

    nodes: tuple[Node, ...] = ()
    discover: Discover | None = None
    ports: Ports = Field(default_factory=Ports)
    tls: Tls | None = None
    keys: tuple[Key, ...] = ()
    limits: Limits = Field(default_factory=Limits)
    key_file: str | None = None
    management: bool = False
    invocations: str | None = None
    canaries: dict[Annotated[str, Field(min_length=1, max_length=256)], Canary] = Field(default_factory=dict)
    aliases: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_./:@+-]{1,256}$")], str] = Field(default_factory=dict)
    forward_headers: Annotated[tuple[HeaderName, ...], Field(max_length=32)] = ()

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        keys = self.keys
        if len({node.name for node in self.nodes}) < len(self.nodes):
            raise ValueError("nodes: two have one name")
        if len({key.client for key in keys}) < len(keys) or len({key.key for key in keys}) < len(keys):
            raise ValueError("keys: two have one client or one key")
        if self.nodes and self.discover is not None:
            raise ValueError("nodes and discover exclude each other")
        passed_headers(self.forward_headers)
        if self.management and not self.keys:
            raise ValueError("management: true lets everybody load and unload models: set keys")
        return self


def problems(error: ValidationError, whole: str) -> str:
    """Name every problem of a document, and where it is (`whole`: not in one field); no value, which may be a key."""
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or whole}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors(include_input=False, include_url=False)
    )


def reached(address: str) -> str:
    """Return the address at which this machine reaches what listens on an address."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104


def read(path: Path = CONFIG) -> Settings:
    """Read the settings; an InvalidConfig names every problem, and no key."""
    document = _document(path)
    try:
        # As JSON, in which a list may be a tuple and an object a dataclass, and nothing else is what it is not.
        settings = TypeAdapter(Settings).validate_json(json.dumps(document, default=str))
    except ValidationError as error:
        raise InvalidConfig(f"{path.name}: {problems(error, 'it')}") from None
    except (TypeError, ValueError):
        raise InvalidConfig(f"{path.name}: contains a key that is not text, or itself") from None
    secret = ROOT / settings.key_file if settings.key_file else path
    if settings.keys and secret.stat().st_mode & stat.S_IRWXO:
        raise InvalidConfig(f"{secret.name}: its keys may be read by others: chmod 600 {secret}")
    return settings


def _document(path: Path) -> Any:
    """Parse the settings, with the keys of `key_file` as `keys`."""
    document = _parse(path) or {}
    if isinstance(document, dict) and isinstance(name := document.get("key_file"), str):
        if document.get("keys"):
            raise InvalidConfig(f"{path.name}: keys and key_file exclude each other")
        if not (keys := _parse(ROOT / name)):
            raise InvalidConfig(f"{name}: contains no keys")
        document["keys"] = keys
    return document


def _parse(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise InvalidConfig(f"{path.name}{where}: not valid YAML") from None


# -- read anew --------------------------------------------------------------------------------------------------------

Lookup = Callable[[str], Iterable[str]]


def lookup(host: str) -> list[str]:
    """Return a host's addresses: IPv4, or IPv6 where there is no IPv4, since a machine with both is one node."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = {
        family: {str(each[4][0]) for each in found if each[0] == family and "%" not in str(each[4][0])}
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    return sorted(addresses[socket.AF_INET] or addresses[socket.AF_INET6])


class Configuration:
    """Settings and nodes, as files have them."""

    def __init__(self, config: Path, nodes: Path, known: Sequence[Node] = (), lookup: Lookup = lookup) -> None:
        """Read nothing yet; `known` are the nodes of a name that has not been resolved."""
        self._config, self._nodes, self._lookup = config, nodes, lookup
        self._settings: Settings | None = None
        self._current = tuple(known)
        # Why they could not be read the last time, and whether gateway.yaml may have other keys then.
        self.problem, self.is_shut = "", False
        self._logged = ""

    def read(self) -> tuple[Settings, tuple[Node, ...]]:
        """Read both; where nodes have a name this takes as long as a name server."""
        settings, nodes = read(self._config), self._current
        found: list[str] = []
        if self._settings is not None and settings.ports != self._settings.ports:
            found.append(f"{self._config.name}: ports change when the gateway is started anew")
            settings = replace(settings, ports=self._settings.ports)
        if settings.discover is None:
            try:
                nodes = settings.nodes or tuple(read_nodes(self._nodes))
            except NoNodes as error:
                raise InvalidConfig(str(error)) from None
        else:
            host, port = settings.discover.host, settings.discover.port
            try:
                nodes = tuple(node_at(address, port) for address in sorted(set(self._lookup(host)))) or nodes
            except OSError as error:
                reason = error.strerror or type(error).__name__
                found.append(f"{host} does not resolve: {reason}; the nodes that were known stay")
        self._log("; ".join(found))
        self._settings, self._current = settings, nodes
        return settings, nodes

    def changed(self) -> tuple[Settings, tuple[Node, ...]] | None:
        """Read both; None where all stays, or where they cannot be read, which is logged."""
        before = self._settings, self._current
        try:
            after = self.read()
        except (InvalidConfig, OSError) as error:
            self.problem, self.is_shut = f"{error}; what was read before stays", self._changes_keys()
            self._log(self.problem)
            return None
        self.problem, self.is_shut = "", False
        if after == before:
            return None
        logger.info("read anew; nodes: %s", ", ".join(node.name for node in after[1]))
        return after

    def _changes_keys(self) -> bool:
        """Return whether the file has other keys than before; what cannot be read may have."""
        before = {(key.client, key.key) for key in self._settings.keys} if self._settings else set()
        try:
            keys = {(each["client"], each["key"]) for each in _document(self._config).get("keys") or ()}
        except (InvalidConfig, OSError, LookupError, TypeError, AttributeError):
            return True
        return bool(keys) and keys != before

    def _log(self, problem: str) -> None:
        """Log a problem once, however often it is found."""
        if problem and problem != self._logged:
            logger.error("%s", problem)
        self._logged = problem


def node_at(address: str, port: int) -> Node:
    """Make a node of an address behind which a node's own Envoy listens; 10.0.0.7 is `10-0-0-7`."""
    at = ipaddress.ip_address(address)
    name = at.exploded.replace(".", "-").replace(":", "-")
    url = f"http://[{at}]:{port}" if at.version == 6 else f"http://{at}:{port}"
    return Node(name=name, inference=url, management=url, metrics=url)
