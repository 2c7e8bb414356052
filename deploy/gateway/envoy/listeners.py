"""The listeners of clients and probes: limits, keys, rates, certificates, Lua filters.

listener.yaml lists and explains the filters in order; Envoy reads bootstrap.yaml once, at its start. This module fills
in the settings.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.gateway.envoy.clusters import DISCOVERY
from deploy.gateway.envoy.discovery import SOCKET
from deploy.gateway.envoy.local_reply import make_local_reply
from deploy.gateway.envoy.resources import (
    Resource,
    fill_template,
    filter_headers,
    format_seconds,
    make_address,
    make_lua_filter,
    make_source,
)
from deploy.gateway.envoy.routes import GRPC, HTTP
from deploy.gateway.settings import GatewaySettings, Key, Tls
from deploy.protocol.rejections import OF_NODES
from deploy.settings_file import read_file
from handlers.errors import InvalidConfig
from handlers.protocol.statuses import meaning_of
from handlers.protocol.wire import API_PATTERN

# Names in Envoy's working folder.
ADMIN = "admin.sock"
CLUSTERS = "clusters.json"
LISTENERS = "listeners.json"
KEYS, TOKENS, RATES = "filter-keys.json", "filter-tokens.json", "filter-rates.json"
FILTERS = {"keys": KEYS, "tokens": TOKENS, "rates": RATES}
PROBE = "probe"  # the listener of probes
HEAP_BYTES = 2 << 30  # minimum heap in bytes: Envoy itself, and some hundred bodies in flight
BODIES_ON_HEAP = 16  # bodies of the maximum size that the heap must hold
PACKED_RATIO = 100  # maximum ratio of inflation of a compressed gRPC message, which is inflated in one step
PACKED_SHARE = 16  # a compressed gRPC message may have this fraction (1/16) of the maximum body
INFLATE_RATIO = 1032  # maximum ratio of inflation of an HTTP body: the highest that deflate can reach
OPEN_PER_S = 100  # rate of all clients together on routes without a key (the page's files), in requests a second
OPEN_BURST = 500  # burst of all clients together on routes without a key, in requests


def bootstrap(settings: GatewaySettings) -> Resource:
    limits = settings.limits
    heap_bytes = max(HEAP_BYTES, BODIES_ON_HEAP * limits.body_bytes)
    made: Resource = fill_template(
        "bootstrap",
        admin=ADMIN,
        discovery=DISCOVERY,
        socket=f"./{SOCKET}",
        heap_bytes=heap_bytes,
        connections=limits.connections,
    )
    return made


def make_listeners(settings: GatewaySettings, authority: str = "") -> list[Resource]:
    ports = settings.ports
    probe = fill_template("listener", PROBE, address=make_address(ports.internal_address, ports.probe))
    clients = ((HTTP, ports.http), (GRPC, ports.grpc))
    return [*(_listener(settings, name, port, authority) for name, port in clients), probe]


def _meanings() -> Iterator[str]:
    """Write what a node's own statuses mean, for Lua."""
    for own, (status, message) in OF_NODES.items():
        code, openai = meaning_of(status)
        yield f'["{own}"] = {{status = "{status}", grpc = "{code}", openai = "{openai}", message = "{message}"}}'


def _listener(settings: GatewaySettings, name: str, port: int, authority: str) -> Resource:
    limits, tls = settings.limits, settings.tls
    nodes = f"local NODES = {{{', '.join(_meanings())}}}\n"
    compressed_bytes = max(1024, limits.body_bytes // PACKED_SHARE)
    filters = fill_template(
        "listener",
        name,
        cors=fill_template("listener", "cors") if settings.cors else None,
        open_rate=fill_template("listener", "open_rate", tokens=_make_bucket(OPEN_BURST, OPEN_PER_S)),
        body_bytes=limits.body_bytes,
        inflate_ratio=PACKED_RATIO if name == GRPC else INFLATE_RATIO,
        path=make_lua_filter("path", name="gateway.path"),
        inflate=make_lua_filter("sums", "inflate", name="gateway.inflate"),
        http_request=make_lua_filter(
            "sums", "http_request", header=f"local FORM_BYTES, FORM_PARTS = {limits.form_bytes}, {limits.form_parts}\n"
        ),
        http_response=make_lua_filter("http_response", header=nodes),
        model=make_lua_filter("model", name="gateway.model"),
        api_paths=rf"{API_PATTERN}(\?.*)?",
        grpc_unpack=make_lua_filter("sums", "grpc_unpack", header=f"local COMPRESSED_BYTES = {compressed_bytes}\n"),
        grpc_outer=make_lua_filter("sums", "grpc_outer"),
        grpc_inner=make_lua_filter("grpc_inner", header=nodes),
        passed_headers=filter_headers(settings.forward_headers, "node", "control"),
    )
    listener: Resource = fill_template(
        "listener",
        "listener",
        name=name,
        address=make_address(settings.ports.address, port),
        tls=None if tls is None else _transport(tls, ["h2"] if name == GRPC else ["h2", "http/1.1"]),
        codec="HTTP2" if name == GRPC and tls is None else "AUTO",
        routes=make_source(f"routes-{name}.json"),
        authority=fill_template("listener", "mark_authority", digest=authority) if authority else None,
        filters=filters,
        tracing=fill_template("listener", "tracing", uri=f"{settings.traces}/v1/traces") if settings.traces else None,
        local_reply=make_local_reply(settings, is_grpc=name == GRPC),
        header_kb=-(-limits.header_bytes // 1024),
        headers=limits.headers,
        header_s=format_seconds(limits.header_s),
        body_s=format_seconds(limits.body_s),
        idle_s=format_seconds(limits.idle_s),
        stream_s=format_seconds(limits.body_s + limits.response_s),
    )
    return listener


def make_filters(settings: GatewaySettings, authorities: Sequence[str] = ()) -> dict[str, Resource]:
    """Return Envoy's files of the filters that open connections follow: name -> filter.

    `authorities` are the digests of `client_ca`; a connection that was made under another one is rejected.
    """
    none = fill_template("listener", "none")

    made = {"keys": _keys(settings, authorities), "tokens": _tokens(settings), "rates": _rates(settings)}
    return {
        file: fill_template("listener", "discovered", name=f"gateway.{name}", config=made[name] or none)
        for name, file in FILTERS.items()
    }


def _keys(settings: GatewaySettings, authorities: Sequence[str]) -> Resource | None:
    """Make the filter that requires a key, and a connection of these authorities; None without keys and authorities."""
    if not settings.keys and not authorities:
        return None
    # Envoy's own filter for this, api_key_auth, is "not covered by the threat model" in 1.40.
    clients = ", ".join(f"[{json.dumps(key.key)}] = {json.dumps(key.client)}" for key in settings.keys)
    allowed = ", ".join(f"[{json.dumps(each)}] = true" for each in authorities)
    budgets = ", ".join(
        f"[{json.dumps(key.client)}] = {key.tokens_per_minute}" for key in settings.keys if key.tokens_per_minute
    )
    tables = (f"{{{each}}}" if each else "nil" for each in (clients, allowed))
    header = f"local CLIENTS, AUTHORITIES = {', '.join(tables)}\nlocal BUDGETS = {{{budgets}}}\n"
    made: Resource = make_lua_filter("keys", header=header)["typed_config"]
    return made


def _tokens(settings: GatewaySettings) -> Resource | None:
    """Make the filter that limits the tokens of each key, a minute's at once; None without such a limit."""
    limits = {key.client: key.tokens_per_minute for key in settings.keys if key.tokens_per_minute}
    buckets = [
        {"entries": [{"key": "client", "value": client}], "token_bucket": _fill_bucket(most, most / 60)}
        for client, most in limits.items()
    ]
    return fill_template("listener", "tokens", descriptors=buckets) if buckets else None


def _rates(settings: GatewaySettings) -> Resource | None:
    """Make the filter that limits the rate of each key; None without rates."""
    limited = [key for key in settings.keys if key.requests_per_second is not None]
    rates = [{"entries": [{"key": "client", "value": key.client}], "token_bucket": make_bucket(key)} for key in limited]
    return fill_template("listener", "rates", descriptors=rates) if rates else None


def make_bucket(key: Key) -> Resource:
    """Make a client's token bucket: its burst, and its refill."""
    rate = key.requests_per_second or 1.0
    return _fill_bucket(key.burst or max(1, math.ceil(rate)), rate)


def _fill_bucket(burst: int, rate: float) -> Resource:
    tokens = max(1, round(rate))
    return _make_bucket(burst, tokens, tokens / rate)


def _make_bucket(burst: int, fill: int, interval_s: float = 1.0) -> Resource:
    return {"max_tokens": burst, "tokens_per_fill": fill, "fill_interval": format_seconds(interval_s)}


def read_authority(tls: Tls | None) -> str:
    """Return a digest of the authority of clients' certificates; "" without one."""
    if tls is None or tls.client_ca is None:
        return ""
    try:
        content = read_file(Path(tls.client_ca))
    except (InvalidConfig, OSError):
        content = b""  # Envoy uses the authority that it has read
    return hashlib.sha256(content).hexdigest()[:16]


def make_secrets(tls: Tls) -> dict[str, Resource]:
    """Return Envoy's files of certificates: name -> secret; Envoy reads one secret from a file."""

    def secret(name: str, path: str, key: str = "") -> Resource:
        made: Resource = fill_template("listener", name, file=path, key=key, folder=str(Path(path).parent))
        return made

    certificate = {"secret-certificate.json": secret("certificate", tls.certificate, tls.key)}
    authority = {} if tls.client_ca is None else {"secret-authority.json": secret("authority", tls.client_ca)}
    return certificate | authority


def _transport(tls: Tls, protocols: list[str]) -> Resource:
    authority = None if tls.client_ca is None else fill_template("listener", "named_authority")
    made: Resource = fill_template(
        "listener", "tls", protocols=protocols, authority=authority, needs_client=tls.client_ca is not None
    )
    return made
