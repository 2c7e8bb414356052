"""The ports that clients and probes reach, and what Envoy may take of the machine: limits, keys, rates, certificates,
scripts.

listener.yaml has the filters in order, and says what each is for; bootstrap.yaml is read once, as Envoy starts. This
module fills in what the settings say.
"""

import math

from deploy.gateway.envoy.local_reply import local_reply
from deploy.gateway.envoy.resources import Resource, address, filled, lua, passed_headers, seconds, watched
from deploy.gateway.envoy.routes import APIS, GRPC, HTTP
from deploy.gateway.settings import Key, Settings, Tls
from deploy.models import ROOT

# Names in Envoy's working folder.
ADMIN = "admin.sock"
CLUSTERS = "clusters.json"
LISTENERS = "listeners.json"
# The probes' listener.
PROBE = "probe"
# Bytes of heap at the least: Envoy itself, and some hundred bodies on their way.
HEAP_BYTES = 2 << 30
BODIES_ON_HEAP = 16
# A compressed message of gRPC is inflated in one go.
PACKED_RATIO = 100  # by how much at most
PACKED_SHARE = 16  # which part of the limit of bodies it may have
INFLATE_RATIO = 1032  # of a body of HTTP: the most that deflate can reach
# Of all clients together for what needs no key: the page's files.
OPEN_PER_S = 100  # requests a second
OPEN_BURST = 500  # requests at once


def bootstrap(settings: Settings) -> Resource:
    """Make the configuration that Envoy starts with."""
    limits = settings.limits
    heap_bytes = max(HEAP_BYTES, BODIES_ON_HEAP * limits.body_bytes)
    made: Resource = filled("bootstrap", admin=ADMIN, heap_bytes=heap_bytes, connections=limits.connections)
    return made


def listeners(settings: Settings) -> list[Resource]:
    """Make the listeners of HTTP, gRPC and probes."""
    ports = settings.ports
    probe = filled("listener", PROBE, address=address(ports.internal_address, ports.probe))
    return [_listener(settings, HTTP, ports.http), _listener(settings, GRPC, ports.grpc), probe]


def _listener(settings: Settings, name: str, port: int) -> Resource:
    limits, tls = settings.limits, settings.tls
    compressed_bytes = max(1024, limits.body_bytes // PACKED_SHARE)
    filters = filled(
        "listener",
        name,
        keys=_keys(settings),
        rates=_rates(settings),
        open_rate=filled("listener", "open_rate", tokens=_tokens(OPEN_BURST, OPEN_PER_S)),
        body_bytes=limits.body_bytes,
        inflate_ratio=PACKED_RATIO if name == GRPC else INFLATE_RATIO,
        path=lua("path", name="gateway.path"),
        inflate=lua("inflate", name="gateway.inflate"),
        http_request=lua("http_request", f"local FORM_BYTES, FORM_PARTS = {limits.form_bytes}, {limits.form_parts}\n"),
        http_response=lua("http_response"),
        model=lua("model", name="gateway.model"),
        api_paths=rf"({'|'.join(APIS)})(\?.*)?",
        grpc_unpack=lua("grpc_unpack", f"local COMPRESSED_BYTES = {compressed_bytes}\n"),
        grpc_outer=lua("grpc_outer"),
        grpc_inner=lua("grpc_inner"),
        passed_headers=passed_headers(settings.forward_headers, "node", "control"),
    )
    listener: Resource = filled(
        "listener",
        "listener",
        name=name,
        address=address(settings.ports.address, port),
        tls=None if tls is None else _transport(tls, ["h2"] if name == GRPC else ["h2", "http/1.1"]),
        codec="HTTP2" if name == GRPC and tls is None else "AUTO",
        routes=watched(f"routes-{name}.json"),
        filters=filters,
        local_reply=local_reply(settings, is_grpc=name == GRPC),
        header_kb=-(-limits.header_bytes // 1024),
        headers=limits.headers,
        header_s=seconds(limits.header_s),
        body_s=seconds(limits.body_s),
        idle_s=seconds(limits.idle_s),
    )
    return listener


# -- keys and rates ---------------------------------------------------------------------------------------------------


def _keys(settings: Settings) -> Resource | None:
    """Make the filter that asks for a key; None where there are none."""
    if not settings.keys:
        return None
    # Envoy's own filter for this, api_key_auth, is "not covered by the threat model" in 1.40.
    clients = ", ".join(f"[{_quoted(key.key)}] = {_quoted(key.client)}" for key in settings.keys)
    return lua("keys", f"local CLIENTS = {{{clients}}}\n", "gateway.keys")


def _quoted(text: str) -> str:
    """Write a string of printable ASCII as Lua has it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _rates(settings: Settings) -> Resource | None:
    """Make the filter that holds each key to its rate; None where none has one."""
    limited = [key for key in settings.keys if key.requests_per_second is not None]
    buckets = [{"entries": [{"key": "client", "value": key.client}], "token_bucket": bucket(key)} for key in limited]
    return filled("listener", "rates", descriptors=buckets) if buckets else None


def bucket(key: Key) -> Resource:
    """Make a client's bucket of requests: how many at once, and how many come back in which time."""
    rate = key.requests_per_second or 1.0
    tokens = max(1, round(rate))
    return _tokens(key.burst or max(1, math.ceil(rate)), tokens, tokens / rate)


def _tokens(most: int, fill: int, interval_s: float = 1.0) -> Resource:
    return {"max_tokens": most, "tokens_per_fill": fill, "fill_interval": seconds(interval_s)}


# -- certificates -----------------------------------------------------------------------------------------------------


def secrets(tls: Tls) -> dict[str, Resource]:
    """Return the certificates' names, by the file that each stands in; Envoy takes one secret from one file."""

    def secret(name: str, path: str, key: str = "") -> Resource:
        # A relative path stands in the repository.
        file = ROOT / path
        made: Resource = filled("listener", name, file=str(file), key=str(ROOT / key), folder=str(file.parent))
        return made

    own = {"secret-certificate.json": secret("certificate", tls.certificate, tls.key)}
    return own | ({"secret-authority.json": secret("authority", tls.client_ca)} if tls.client_ca is not None else {})


def _transport(tls: Tls, protocols: list[str]) -> Resource:
    """Make the transport socket of a listener that offers these protocols (ALPN)."""
    authority = None if tls.client_ca is None else filled("listener", "named_authority")
    made: Resource = filled(
        "listener", "tls", protocols=protocols, authority=authority, needs_client=tls.client_ca is not None
    )
    return made
