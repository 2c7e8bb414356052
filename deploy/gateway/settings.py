"""The settings of the gateway, as gateway.yaml and its key file contain them.

docs/reference/gateway.md explains each setting, and deploy/gateway.yaml lists all of them with their defaults.
"""

import stat
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from deploy import settings_file
from deploy.gateway.envoy.resources import filter_headers
from deploy.models import ROOT
from deploy.nodes.run.node import Node
from deploy.places import HOME
from deploy.settings_file import Collector, Origin, Port, read_file, read_yaml
from handlers.config import SETTINGS, Count
from handlers.errors import InvalidConfig
from handlers.protocol.wire import FORM_FIELDS
from torchserve_client.payloads import Json

# The user's own settings in the folder of the state, or else the built-in ones.
CONFIG = own if (own := HOME / "gateway.yaml").is_file() else ROOT / "deploy" / "gateway.yaml"
STATE_DIR = HOME / ".gateway"  # the folder of Envoy and the control process: configuration, logs, saved state
# The settings that close the edge. `NAME: none` gives one, or a part of it, its default.
GUARDS = ("tls", "keys", "limits")
NONE = "none"

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
    """Nodes that are found by a name, each behind its own Envoy (`python -m deploy.nodes.container`)."""

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
    client: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    key: Annotated[str, Field(pattern=r"^[!-~]{16,256}$")]
    requests_per_second: Rate | None = None
    burst: Count | None = None
    tokens_per_minute: Annotated[int, Field(ge=1, le=10**9)] | None = None


def _check_keys(keys: tuple[Key, ...]) -> tuple[Key, ...]:
    if len({key.client for key in keys}) < len(keys) or len({key.key for key in keys}) < len(keys):
        raise ValueError("duplicate client or key")
    return keys


Keys = Annotated[tuple[Key, ...], AfterValidator(_check_keys)]


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class GatewayLimits:
    body_bytes: Bytes = 32 << 20
    api_body_bytes: Bytes = 8 << 20
    form_bytes: Annotated[int, Field(ge=1, le=1 << 20)] = 64 << 10
    form_parts: Annotated[int, Field(ge=1, le=10_000)] = FORM_FIELDS
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
    keys: Keys = ()
    limits: GatewayLimits = Field(default_factory=GatewayLimits)
    key_file: str | None = None
    management: bool = False
    invocations: str | None = None
    default_models: tuple[str, ...] = ()
    vector_space: Literal["one"] | dict[str, str] | None = None  # of each version, or by the model's name
    canaries: dict[Annotated[str, Field(min_length=1, max_length=256)], Canary] = Field(default_factory=dict)
    aliases: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_./:@+-]{1,256}$")], str] = Field(default_factory=dict)
    cors: Annotated[tuple[Origin, ...], Field(max_length=64)] = ()
    traces: Collector | None = None
    forward_headers: Annotated[tuple[HeaderName, ...], Field(max_length=32)] = ()

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if len({node.name for node in self.nodes}) < len(self.nodes):
            raise ValueError("nodes: duplicate name")
        if self.nodes and self.discover is not None:
            raise ValueError("nodes and discover cannot both be set; remove one")
        filter_headers(self.forward_headers)
        if self.management and not self.keys:
            raise ValueError("management: true without keys lets every client load and unload models: set keys")
        return self


def read_settings(path: Path = CONFIG) -> GatewaySettings:
    """Read the settings; an InvalidConfig lists every problem, and no API key."""
    return make_settings(path, read_document(path))


def read_document(path: Path) -> Json:
    """Parse the settings, with the keys of `key_file` as `keys`."""
    document = read_yaml(path) or {}
    if not isinstance(document, dict):
        raise InvalidConfig(f"{path.name}: not a mapping of settings")
    if isinstance(name := document.get("key_file"), str):
        if document.get("keys"):
            raise InvalidConfig(f"{path.name}: keys and key_file cannot both be set; remove one")
        if not isinstance(keys := read_yaml(secret := path.parent / name), list) or not keys:
            raise InvalidConfig(f"{name}: expected a list of keys, as `keys` of {CONFIG.name}")
        settings_file.read_settings(Keys, secret, keys)  # an error names this file, and `none` is no value
        document["keys"] = keys
    return document


def make_settings(path: Path, document: Json) -> GatewaySettings:
    settings = settings_file.read_settings(GatewaySettings, path, _omit_none(document))
    settings = _anchor(settings, path.resolve().parent)
    secret = Path(settings.key_file or path)
    if settings.keys and secret.stat().st_mode & stat.S_IRWXO:
        raise InvalidConfig(f"{secret.name}: other users may read its keys: chmod 600 {secret}")
    if settings.keys and not read_file(secret).endswith(b"\n"):
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


def _omit_none(document: Json) -> Json:
    """Return a document without the guards, and the parts of guards, that are `none`."""

    def omit(part: Any) -> Any:
        is_none = isinstance(part, dict) and NONE in part.values()
        return {name: each for name, each in part.items() if each != NONE or name == "client"} if is_none else part

    guards = {name: document[name] for name in GUARDS if document.get(name, NONE) != NONE}
    guards = {name: [*map(omit, part)] if isinstance(part, list) else omit(part) for name, part in guards.items()}
    return {name: each for name, each in document.items() if name not in GUARDS} | guards
