"""The configuration of a node's Envoy; pure.

    NodeSettings, TorchServe's addresses -> bootstrap, read once: the port, and where TorchServe answers
    View                                 -> routes, read anew whenever they change: what is let through, and how it is

    /predictions/M[/V]          GET, POST, PUT   TorchServe, inference
    /models, /models/M[/V]      GET              TorchServe, management; 503 while the node drains
    /metrics                    GET              TorchServe, metrics
    /ready, /live               GET              said by Envoy itself, at once
    another method of these     405
    all else                    404

A description with a query is refused: `?customized=true` on an adaptive model is never answered, and stops it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deploy.container.settings import NodeSettings
from deploy.gateway.envoy.bootstrap import ADMIN
from deploy.gateway.envoy.clusters import NOT_FOR_NODES, Tokens, node_filters
from deploy.gateway.envoy.resources import ROUTES, Resource, address, seconds, typed, watched
from deploy.gateway.watch import DRAINING
from deploy.run.node import address as host_and_port

LISTENER = "node"
ROUTES_FILE = "routes.json"
INFERENCE, MANAGEMENT, METRICS = "inference", "management", "metrics"
# Seconds to reach TorchServe on this machine. How long an answer may take is the edges' affair.
CONNECT_S = 1.0
# KiB, and lines, of a head: more than an edge lets through.
HEAD_KIB, HEADERS = 128, 1100
# Requests go to TorchServe's queue and never wait here.
MANY = 1 << 20
NO_TOKENS = Tokens()


@dataclass(frozen=True, slots=True)
class View:
    """What a node says of itself.

    Attributes:
        is_ready: whether all that it is to serve is READY.
        words: why it is not, or a word that it is.
        is_draining: whether it is about to end.
        tokens: that TorchServe wants to see; None each where it wants none.
    """

    is_ready: bool = False
    words: str = "starting"
    is_draining: bool = False
    tokens: Tokens = NO_TOKENS


def bootstrap(settings: NodeSettings, urls: Mapping[str, str]) -> Resource:
    """Make the configuration that Envoy starts with.

    Args:
        settings: where it listens.
        urls: INFERENCE, MANAGEMENT, METRICS -> TorchServe's address.
    """
    return {
        "node": {"id": "node", "cluster": "node"},
        "admin": {"address": {"pipe": {"path": ADMIN, "mode": 0o600}}},
        "static_resources": {
            "listeners": [_listener(settings)],
            "clusters": [_cluster(name, url) for name, url in urls.items()],
        },
    }


def routes(view: View) -> Resource:
    """Make the routes, with what the node says of itself now."""
    return {
        "@type": ROUTES,
        "name": LISTENER,
        "virtual_hosts": [{"name": LISTENER, "domains": ["*"], "routes": list(_routes(view))}],
    }


def _listener(settings: NodeSettings) -> Resource:
    manager = typed(
        "envoy.filters.network.http_connection_manager",
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=LISTENER,
        rds={"route_config_name": LISTENER, "config_source": watched(ROUTES_FILE)},
        http_filters=[
            # A worker takes every header of every request apart: none is added.
            typed(
                "envoy.filters.http.router",
                "envoy.extensions.filters.http.router.v3.Router",
                suppress_envoy_headers=True,
            )
        ],
        local_reply_config=_local_reply(),
        generate_request_id=False,
        preserve_external_request_id=True,
        server_header_transformation="PASS_THROUGH",
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action="REJECT_REQUEST",
        max_request_headers_kb=HEAD_KIB,
        # An edge ends what lies idle, and what takes too long.
        stream_idle_timeout="0s",
        common_http_protocol_options={"max_headers_count": HEADERS},
    )
    return {
        "name": LISTENER,
        "address": address(settings.address, settings.port),
        # Two nodes on one port would share their requests, and nobody would be told.
        "enable_reuse_port": False,
        "filter_chains": [{"filters": [manager]}],
    }


def _cluster(name: str, url: str) -> Resource:
    host, port = host_and_port(url)
    endpoint = {"endpoint": {"address": address(host, port)}}
    protocol = typed(
        "",
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        explicit_http_config={"http_protocol_options": {}},
        http_filters=node_filters([{"remove": name} for name in NOT_FOR_NODES if name != "authorization"]),
    )["typed_config"]
    cluster: Resource = {
        "name": name,
        "type": "STRICT_DNS" if not _is_ip(host) else "STATIC",
        "connect_timeout": seconds(CONNECT_S),
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
        "circuit_breakers": {
            "thresholds": [
                dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), MANY)
            ]
        },
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol},
    }
    if name == MANAGEMENT:
        # A management call that waits for its workers holds one of TorchServe's threads, and every connection that
        # this thread has with it: each question comes on a connection of its own.
        protocol["common_http_protocol_options"] = {"max_requests_per_connection": 1}
    return cluster


def _is_ip(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdecimal()


def _routes(view: View) -> Iterator[Resource]:
    is_ready = view.is_ready and not view.is_draining
    words = "draining" if view.is_draining else view.words
    yield _said("/ready", 200 if is_ready else 503, words)
    yield _said("/live", 200, "live")
    yield _to(INFERENCE, {"prefix": "/predictions/"}, "GET|POST|PUT", view.tokens.inference)
    for match in ({"path": "/models"}, {"safe_regex": {"regex": r"/models/.+"}}):
        if view.is_draining:
            yield {
                "match": {**match, "headers": [_method("GET")]},
                "direct_response": {"status": 503, "body": _body(_error(503, DRAINING, "This node drains."))},
                "response_headers_to_add": [_header("content-type", "application/json")],
            }
        # The list of models has pages, and nothing else of a query.
        plain = [] if "path" in match else [{"name": ":path", "string_match": {"safe_regex": {"regex": r"[^?]*"}}}]
        yield _to(MANAGEMENT, {**match, "headers": plain}, "GET", view.tokens.management)
    yield _to(METRICS, {"path": "/metrics"}, "GET", None)
    for match in (
        {"prefix": "/predictions/"},
        *({"path": path} for path in ("/models", "/metrics", "/ready", "/live")),
    ):
        yield {"match": match, "direct_response": {"status": 405}}
    # A description that is only read: what has a query is none, whatever its method.
    yield {
        "match": {"prefix": "/models/", "headers": [{**_method("GET"), "invert_match": True}]},
        "direct_response": {"status": 405},
    }
    yield {"match": {"prefix": "/"}, "direct_response": {"status": 404}}


def _said(path: str, status: int, words: str) -> Resource:
    return {
        "match": {"path": path, "headers": [_method("GET")]},
        "direct_response": {"status": status, "body": _body(f"{words}\n")},
        "response_headers_to_add": [_header("content-type", "text/plain")],
    }


def _to(cluster: str, match: Resource, methods: str, token: str | None) -> Resource:
    route: Resource = {
        "match": {**match, "headers": [*match.get("headers", []), _method(methods)]},
        "route": {"cluster": cluster, "timeout": "0s"},
    }
    if token is None:
        route["request_headers_to_remove"] = ["authorization"]
    else:
        route["request_headers_to_add"] = [_header("authorization", f"Bearer {token}")]
    return route


def _method(regex: str) -> Resource:
    return {"name": ":method", "string_match": {"safe_regex": {"regex": regex}}}


def _header(name: str, value: str) -> Resource:
    # A percent sign begins a command in Envoy's formats.
    header = {"key": name, "value": value.replace("%", "%%")}
    return {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}


def _body(text: str) -> Resource:
    return {"inline_string": text}


def _error(status: int, kind: str, message: str) -> str:
    return json.dumps({"code": status, "type": kind, "message": message})


def _local_reply() -> Resource:
    """Answer in the project's form, and a TorchServe that is gone with 502, which edges try on another node."""
    gone = {"response_flag_filter": {"flags": ["UF", "UC", "UH", "UR", "UPE"]}}
    only = "A node serves /predictions, /models, /metrics, /ready and /live, and descriptions without a query."
    return {
        "mappers": [
            {**_mapper(gone, 502, "BadGateway", "TorchServe gave no answer."), "status_code": 502},
            _mapper(_status(400), 400, "BadRequest", "The request is not valid HTTP."),
            _mapper(_status(404), 404, "NotFound", only),
            _mapper(_status(405), 405, "MethodNotAllowed", "This method is not allowed here."),
        ]
    }


def _mapper(filter_: Resource, status: int, kind: str, message: str) -> Resource:
    source = {"inline_string": _error(status, kind, message)}
    return {
        "filter": filter_,
        "body_format_override": {"text_format_source": source, "content_type": "application/json"},
    }


def _status(status: int) -> Resource:
    value = {"default_value": status, "runtime_key": "node.status"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}
