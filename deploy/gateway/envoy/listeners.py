"""The two ports that clients reach: what a connection may take, and the filters that its requests pass.

    HTTP   keys -> rates -> open_rate -> notes -> (inflate -> decompressor) -> buffer -> (http_request)
               -> (http_response) -> router
    gRPC   keys -> rates -> open_rate -> notes -> buffer -> grpc_unpack -> decompressor -> unpacked -> grpc_outer
               -> bridge -> grpc_inner -> router

    keys           who calls: 401 without a key; only where there are keys         keys.lua
    rates          429 beyond a key's rate; only where a key has one
    open_rate      429 beyond the rate of what needs no key; on those routes alone
    notes          for the access log: the client, the trace, and the parts of Server-Timing
    inflate, decompressor   of bodies with Content-Encoding alone                  inflate.lua
    buffer, unpacked        the limit of bodies; a worker gets them whole, with their length
    http_request   forms are bounded, and what was inflated is whole; of those alone
    http_response  TorchServe's own errors get our form; of errors alone
    grpc_unpack    one message, whole; unsupported methods are refused
    grpc_outer     the model of a ModelInfer becomes the path; and the status of the answer
    bridge         gRPC becomes a POST of the message, as TorchServe's inference API takes it
    grpc_inner     answers that are no message become a status

Those in brackets, and the two of Lua of gRPC's errors, cost an inference nothing that does not ask for them; a script
that runs costs some 20 us of a core. What scripts do to a request stands on top of each in lua/.
"""

from dataclasses import dataclass

from deploy.gateway.envoy.access_log import access_log, notes
from deploy.gateway.envoy.errors import local_reply
from deploy.gateway.envoy.keys import key_filters, open_rate
from deploy.gateway.envoy.resources import (
    LISTENER,
    TYPE,
    Resource,
    address,
    failed,
    lua,
    only,
    seconds,
    sent,
    typed,
    watched,
)
from deploy.gateway.envoy.routes import BUFFER, DECOMPRESSOR, GRPC, HTTP, INFLATE, UNPACKED
from deploy.gateway.envoy.tls import transport
from deploy.gateway.settings import Settings

HTTP_FILTERS, EXTENSIONS = "envoy.filters.http.", "envoy.extensions.filters.http."


@dataclass(frozen=True, slots=True)
class Connection:
    """What one connection may take of the gateway's memory.

    Attributes:
        buffer_bytes: read at once, and kept of what its other side does not take. A read of a gzip body becomes up to a
            thousand times as much before the limit of bodies sees it.
        streams: requests at once on one connection of HTTP/2; gRPC clients send all of theirs on one.
        stream_window_bytes, connection_window_bytes: that HTTP/2 lets a client send before it is read.
        inflate_ratio: the most that deflate can reach, so that nothing is cut off in silence; the limit of bodies
            answers 413.
        packed_ratio, packed_share: of a compressed message of gRPC, which is inflated in one go: by how much at most,
            and which part of the limit of bodies it may have.
    """

    buffer_bytes: int = 64 << 10
    streams: int = 1024
    stream_window_bytes: int = 256 << 10
    connection_window_bytes: int = 1 << 20
    inflate_ratio: int = 1032
    packed_ratio: int = 100
    packed_share: int = 16


CONNECTION = Connection()


def listeners(settings: Settings) -> list[Resource]:
    """Make the listeners of HTTP and gRPC."""
    return [
        _listener(settings, HTTP, settings.ports.http, _http_filters(settings)),
        _listener(settings, GRPC, settings.ports.grpc, _grpc_filters(settings)),
    ]


def _listener(settings: Settings, name: str, port: int, filters: list[Resource]) -> Resource:
    chain: Resource = {"filters": [_manager(settings, name, filters)]}
    if settings.tls is not None:
        chain["transport_socket"] = transport(settings.tls, ["h2"] if name == GRPC else ["h2", "http/1.1"])
        chain["transport_socket_connect_timeout"] = seconds(settings.limits.header_s)
    return {
        "@type": LISTENER,
        "name": name,
        "address": address(settings.ports.address, port),
        # Two gateways on one port would share its clients, and nobody would be told.
        "enable_reuse_port": False,
        "connection_balance_config": {"exact_balance": {}},
        # A connection that sends nothing at all is closed as one whose head does not come is.
        "listener_filters": [
            typed(
                "envoy.filters.listener.tls_inspector",
                "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
            )
        ],
        "listener_filters_timeout": seconds(settings.limits.header_s),
        "per_connection_buffer_limit_bytes": CONNECTION.buffer_bytes,
        "filter_chains": [chain],
    }


def _manager(settings: Settings, name: str, filters: list[Resource]) -> Resource:
    limits = settings.limits
    return typed(
        "envoy.filters.network.http_connection_manager",
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        codec_type="HTTP2" if name == GRPC and settings.tls is None else "AUTO",
        rds={"route_config_name": name, "config_source": watched(f"routes-{name}.json")},
        http_filters=filters,
        access_log=access_log(),
        local_reply_config=local_reply(settings, is_grpc=name == GRPC),
        use_remote_address=True,
        skip_xff_append=True,
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        server_name="gateway",
        # A client's X-Request-Id stays as it is: Envoy would write into it whether it traces.
        request_id_extension={
            "typed_config": {
                "@type": TYPE + "envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig",
                "pack_trace_reason": False,
                "use_request_id_for_trace_sampling": False,
            }
        },
        # What only the gateway may say; before anything else reads it.
        early_header_mutation_extensions=[
            typed(
                "envoy.http.early_header_mutation.header_mutation",
                "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                mutations=[
                    {"remove": "x-client"},
                    {"remove": "x-model-metadata"},
                    {"remove_on_match": {"key_matcher": {"prefix": "x-envoy-", "ignore_case": True}}},
                ],
            )
        ],
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action="REJECT_REQUEST",
        max_request_headers_kb=-(-limits.header_bytes // 1024),
        request_headers_timeout=seconds(limits.header_s),
        request_timeout=seconds(limits.body_s),
        stream_idle_timeout=seconds(limits.idle_s),
        common_http_protocol_options={
            "idle_timeout": seconds(limits.idle_s),
            "max_headers_count": limits.headers,
            "headers_with_underscores_action": "REJECT_REQUEST",
        },
        # Load generators of old speak HTTP/1.0.
        http_protocol_options={"accept_http_10": True, "default_host_for_http_10": "gateway"},
        http2_protocol_options={
            "max_concurrent_streams": CONNECTION.streams,
            "initial_stream_window_size": CONNECTION.stream_window_bytes,
            "initial_connection_window_size": CONNECTION.connection_window_bytes,
        },
    )


def _http_filters(settings: Settings) -> list[Resource]:
    form_bytes = f"local FORM_BYTES = {settings.limits.form_bytes}\n"
    return [
        *key_filters(settings),
        open_rate(),
        notes(),
        only(lua("inflate", name=INFLATE), PACKED),
        only(_decompressor(CONNECTION.inflate_ratio), PACKED),
        _buffer(settings, BUFFER),
        only(lua("http_request", form_bytes), {"or_matcher": {"predicate": [INFLATED, FORM]}}),
        only(lua("http_response"), failed()),
        _router(),
    ]


def _grpc_filters(settings: Settings) -> list[Resource]:
    bridge = typed(
        HTTP_FILTERS + "grpc_http1_reverse_bridge",
        EXTENSIONS + "grpc_http1_reverse_bridge.v3.FilterConfig",
        content_type="application/x-protobuf",
        withhold_grpc_frames=True,
    )
    compressed_bytes = max(1024, settings.limits.body_bytes // CONNECTION.packed_share)
    return [
        *key_filters(settings),
        open_rate(),
        notes(),
        _buffer(settings, BUFFER),
        lua("grpc_unpack", f"local COMPRESSED_BYTES = {compressed_bytes}\n"),
        _decompressor(CONNECTION.packed_ratio),
        _buffer(settings, UNPACKED),
        lua("grpc_outer"),
        bridge,
        lua("grpc_inner"),
        _router(),
    ]


PACKED = sent("content-encoding", ".*")
INFLATED = sent("x-inflated", ".*")
FORM = sent("content-type", "(?i).*application/x-www-form-urlencoded.*")


def _decompressor(ratio: int) -> Resource:
    library = typed(
        "gzip",
        "envoy.extensions.compression.gzip.decompressor.v3.Gzip",
        window_bits=15,
        max_inflate_ratio=ratio,
    )
    return typed(
        DECOMPRESSOR,
        EXTENSIONS + "decompressor.v3.Decompressor",
        decompressor_library=library,
        request_direction_config={"advertise_accept_encoding": False},
        response_direction_config={
            "common_config": {"enabled": {"default_value": False, "runtime_key": "gateway.inflate"}}
        },
    )


def _buffer(settings: Settings, name: str) -> Resource:
    return typed(name, EXTENSIONS + "buffer.v3.Buffer", max_request_bytes=settings.limits.body_bytes)


def _router() -> Resource:
    return {"name": HTTP_FILTERS + "router", "typed_config": {"@type": TYPE + EXTENSIONS + "router.v3.Router"}}
