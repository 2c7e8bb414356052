"""The files that configure the gateway, read again when they change.

gateway.yaml ──────────────────────────────────────────────> GatewaySettings
its nodes, or the addresses of its name, or nodes.json ────> nodes

docs/reference/gateway.md explains each setting, and deploy/gateway.yaml lists all of them with their defaults.
"""

import ipaddress
import json
import logging
import socket
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from deploy.gateway.envoy.resources import filter_headers
from deploy.models import ROOT
from deploy.places import HOME
from deploy.run.node import Node, read_nodes
from handlers.config import SETTINGS, Count
from handlers.errors import InvalidConfig

logger = logging.getLogger(__name__)

# The user's own settings in the folder of the state, or else the built-in ones.
CONFIG = own if (own := HOME / "gateway.yaml").is_file() else ROOT / "deploy" / "gateway.yaml"
# The folder of Envoy and the control process: configuration, logs, saved state.
STATE_DIR = HOME / ".gateway"
# A file of that folder: the gateway has had keys since its start. Without keys it then needs `keys: none`.
KEYED = "keyed"
NO_KEYS = "none"
# Seconds after a file's change in which its time may not show another change.
RECENT_S = 2.0

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
# A header of HTTP: a token, and a value without control characters at its ends.
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")]
HeaderValue = Annotated[str, Field(pattern=r"^[!-~]([ -~]{0,254}[!-~])?$")]
Rate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1, le=1 << 30)]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Ports:
    """The addresses and ports of the gateway; 8000 to 8002 are Triton's."""

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
    """Nodes that are found by a name, each behind its own Envoy (`python -m deploy.container`)."""

    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$")]
    port: Port = 8085


@dataclass(frozen=True, config=SETTINGS)
class Canary:
    """A version that receives a share of the requests without a version, and all of them with `header`."""

    version: Annotated[str, Field(min_length=1, max_length=64)]
    percent: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
    header: tuple[HeaderName, HeaderValue] | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Tls:
    """Certificates as PEM files; they are read again when they are replaced by a rename."""

    certificate: str
    key: str
    client_ca: str | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Key:
    """An API key and its rate limit."""

    client: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    key: Annotated[str, Field(pattern=r"^[!-~]{16,256}$")]
    requests_per_second: Rate | None = None
    burst: Count | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Limits:
    """Limits of a request, a connection and a node."""

    body_bytes: Bytes = 32 << 20
    api_body_bytes: Bytes = 8 << 20
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
class GatewaySettings:
    """All settings; without `nodes` those of nodes.json are used, and `canaries` are by the model's name."""

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
            raise ValueError("nodes: duplicate name")
        if len({key.client for key in keys}) < len(keys) or len({key.key for key in keys}) < len(keys):
            raise ValueError("keys: duplicate client or key")
        if self.nodes and self.discover is not None:
            raise ValueError("nodes and discover exclude each other")
        filter_headers(self.forward_headers)
        if self.management and not self.keys:
            raise ValueError("management: true without keys lets every client load and unload models: set keys")
        return self


def describe_problems(error: ValidationError, whole: str) -> str:
    """Return every problem with its field (`whole` without one); never a value, which may be an API key."""
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or whole}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors(include_input=False, include_url=False)
    )


def read_settings(path: Path = CONFIG) -> GatewaySettings:
    """Read the settings; an InvalidConfig lists every problem, and no API key."""
    document = _read_document(path)
    try:
        # In JSON mode a list may become a tuple and an object a dataclass; nothing else is converted.
        settings = TypeAdapter(GatewaySettings).validate_json(json.dumps(document, default=str))
    except ValidationError as error:
        raise InvalidConfig(f"{path.name}: {describe_problems(error, 'it')}") from None
    except (TypeError, ValueError):
        raise InvalidConfig(f"{path.name}: contains a key that is not text, or itself") from None
    settings = _anchor(settings, path.resolve().parent)
    secret = Path(settings.key_file or path)
    if settings.keys and secret.stat().st_mode & stat.S_IRWXO:
        raise InvalidConfig(f"{secret.name}: other users may read its keys: chmod 600 {secret}")
    if settings.keys and not secret.read_bytes().endswith(b"\n"):
        # A file that is cut inside a key contains a shorter key.
        raise InvalidConfig(f"{secret.name}: its last line is incomplete: end the file with a newline")
    return settings


def _anchor(settings: GatewaySettings, folder: Path) -> GatewaySettings:
    """Make the paths of files absolute, which count from the settings' folder."""

    def at(path: str | None) -> Any:
        return path and str(folder / path)

    tls = settings.tls and replace(settings.tls, **{name: at(path) for name, path in asdict(settings.tls).items()})
    nodes = tuple(
        replace(node, token_file=at(node.token_file), restore_file=at(node.restore_file)) for node in settings.nodes
    )
    return replace(settings, key_file=at(settings.key_file), tls=tls, nodes=nodes)


def _read_document(path: Path) -> Any:
    """Parse the settings, with the keys of `key_file` as `keys`; `keys: none` are none."""
    document = parse_yaml(path) or {}
    if not isinstance(document, dict):
        return document
    if isinstance(name := document.get("key_file"), str):
        if document.get("keys"):
            raise InvalidConfig(f"{path.name}: keys and key_file exclude each other")
        if not (keys := parse_yaml(path.parent / name)):
            raise InvalidConfig(f"{name}: contains no keys")
        document["keys"] = keys
    elif document.get("keys") == NO_KEYS:
        document["keys"] = []
    return document


def parse_yaml(path: Path) -> Any:
    """Return a document of YAML; an InvalidConfig names the line that cannot be read."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise InvalidConfig(f"{path.name}{where}: not valid YAML") from None


# -- changes ----------------------------------------------------------------------------------------------------------

Resolver = Callable[[str], Iterable[str]]


def resolve_host(host: str) -> list[str]:
    """Return a host's IPv4 addresses, or else its IPv6 addresses, since a machine with both is one node."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = {
        family: {str(each[4][0]) for each in found if each[0] == family and "%" not in str(each[4][0])}
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    return sorted(addresses[socket.AF_INET] or addresses[socket.AF_INET6])


class Reduced(InvalidConfig):
    """The settings lack a section that they had at the last read."""


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
        # Why the last read failed.
        self.problem = ""
        # Whether a file that cannot be applied may have other keys.
        self.is_shut = False
        self._logged = ""
        self._keyed = None if state_dir is None else state_dir / KEYED
        # The settings as last parsed, with the times and sizes of their files.
        self._parsed: tuple[Any, GatewaySettings] | None = None
        # The sections that gateway.yaml had, and its content without some of them, when it was first seen.
        self._sections: set[str] = set()
        self._reduced: bytes | None = None

    def read(self) -> tuple[GatewaySettings, tuple[Node, ...]]:
        """Read both; with `discover` this may block for as long as a name server takes."""
        settings, nodes = self.parse(), self._nodes
        problems: list[str] = []
        if self._settings is not None and settings.ports != self._settings.ports:
            problems.append(f"{self._config.name}: ports change when the gateway is restarted")
            settings = replace(settings, ports=self._settings.ports)
        if settings.discover is None:
            nodes = settings.nodes or tuple(read_nodes(self._nodes_file))
        else:
            host, port = settings.discover.host, settings.discover.port
            try:
                nodes = tuple(make_node(address, port) for address in sorted(set(self._resolve(host)))) or nodes
            except OSError as error:
                reason = error.strerror or type(error).__name__
                problems.append(f"{host} does not resolve: {reason}; the known nodes stay")
        self._log("; ".join(problems))
        self._settings, self._nodes = settings, nodes
        return settings, nodes

    def parse(self) -> GatewaySettings:
        """Return the settings, parsed again only if a file has changed; raise InvalidConfig for a file that is cut."""
        before = self._stat_files()
        if self._parsed is not None and before == self._parsed[0]:
            return self._parsed[1]
        content, document = self._config.read_bytes(), parse_yaml(self._config) or {}
        sections = {*document} if isinstance(document, dict) else set()
        if (lost := self._sections - sections) and content != self._reduced:
            # An editor may have emptied the file before it writes: its content must be equal at the next read.
            self._reduced = content
            raise Reduced(f"{self._config.name}: has no {', '.join(sorted(lost))} any more; read again in a second")
        settings = read_settings(self._config)
        if settings.keys or document.get("keys") == NO_KEYS:
            self._mark(has_keys=bool(settings.keys))
        elif self._has_had_keys():
            raise InvalidConfig(
                f"{self._config.name}: has no keys any more; `keys: {NO_KEYS}` or a restart removes them"
            )
        self._sections, self._reduced = sections, None
        self._parsed = (before, settings) if before == self._stat_files() else None
        return settings

    def _stat_files(self) -> Any:
        """Return the times and sizes of the settings and their keys; None, unlike any other, after a recent change."""
        named = self._parsed[1].key_file if self._parsed else None
        found = [path.stat() for path in (self._config, *([Path(named)] if named else []))]
        if time.time() - max(each.st_mtime for each in found) < RECENT_S:
            return object()
        return [(each.st_mtime_ns, each.st_size, each.st_ino, each.st_mode) for each in found]

    def _has_had_keys(self) -> bool:
        return bool(self._settings and self._settings.keys) or (self._keyed is not None and self._keyed.exists())

    def _mark(self, *, has_keys: bool) -> None:
        if self._keyed is not None and self._keyed.exists() != has_keys:
            self._keyed.touch() if has_keys else self._keyed.unlink()

    def read_changes(self) -> tuple[GatewaySettings, tuple[Node, ...]] | None:
        """Read both; None without a change, or after a failure, which is logged."""
        before = self._settings, self._nodes
        try:
            after = self.read()
        except (InvalidConfig, OSError) as error:
            self.problem = f"{error}; the previous settings stay"
            self.is_shut = self.is_shut if isinstance(error, Reduced) else self._may_change_keys()
            self._log(self.problem)
            return None
        self.problem, self.is_shut = "", False
        if after == before:
            return None
        logger.info("settings read; nodes: %s", ", ".join(node.name for node in after[1]))
        return after

    def _may_change_keys(self) -> bool:
        """Return whether the file has other keys than before; a file that cannot be read may have."""
        before = {(key.client, key.key) for key in self._settings.keys} if self._settings else set()
        try:
            keys = {(each["client"], each["key"]) for each in _read_document(self._config).get("keys") or ()}
        except (InvalidConfig, OSError, LookupError, TypeError, AttributeError):
            return True
        return keys != before

    def _log(self, problem: str) -> None:
        """Log a problem once, until it changes."""
        if problem and problem != self._logged:
            logger.error("%s", problem)
        self._logged = problem


def make_node(address: str, port: int) -> Node:
    """Make a node of the address of its Envoy; the name of 10.0.0.7 is `10-0-0-7`."""
    at = ipaddress.ip_address(address)
    name = at.exploded.replace(".", "-").replace(":", "-")
    url = f"http://[{at}]:{port}" if at.version == 6 else f"http://{at}:{port}"
    return Node(name=name, inference=url, management=url, metrics=url)
