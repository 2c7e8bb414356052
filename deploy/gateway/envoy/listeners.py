"""The two ports that clients reach: listener.yaml, with limits, keys, certificates and scripts.

listener.yaml has the filters in order, and says what each is for.
"""

from deploy.gateway.envoy.errors import local_reply
from deploy.gateway.envoy.keys import keys, open_rate, rates
from deploy.gateway.envoy.resources import Resource, address, filled, lua, seconds, watched
from deploy.gateway.envoy.routes import GRPC, HTTP, INFLATE
from deploy.gateway.envoy.tls import transport
from deploy.gateway.settings import Settings

# A compressed message of gRPC, which is inflated in one go: by how much at most, and which part of the limit of bodies
# it may have. A body of HTTP: the most that deflate can reach.
PACKED_RATIO, PACKED_SHARE, INFLATE_RATIO = 100, 16, 1032


def listeners(settings: Settings) -> list[Resource]:
    """Make the listeners of HTTP and gRPC."""
    ports = settings.ports
    return [_listener(settings, HTTP, ports.http), _listener(settings, GRPC, ports.grpc)]


def _listener(settings: Settings, name: str, port: int) -> Resource:
    limits, tls = settings.limits, settings.tls
    compressed_bytes = max(1024, limits.body_bytes // PACKED_SHARE)
    filters = filled(
        "listener",
        name,
        keys=keys(settings),
        rates=rates(settings),
        open_rate=open_rate(),
        body_bytes=limits.body_bytes,
        inflate_ratio=PACKED_RATIO if name == GRPC else INFLATE_RATIO,
        inflate=lua("inflate", name=INFLATE),
        http_request=lua("http_request", f"local FORM_BYTES = {limits.form_bytes}\n"),
        http_response=lua("http_response"),
        grpc_unpack=lua("grpc_unpack", f"local COMPRESSED_BYTES = {compressed_bytes}\n"),
        grpc_outer=lua("grpc_outer"),
        grpc_inner=lua("grpc_inner"),
    )
    listener: Resource = filled(
        "listener",
        "listener",
        name=name,
        address=address(settings.ports.address, port),
        tls=None if tls is None else transport(tls, ["h2"] if name == GRPC else ["h2", "http/1.1"]),
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
