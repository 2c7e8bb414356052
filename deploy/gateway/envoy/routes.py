"""Which request goes where.

HTTP   /predictions/M[/V], /v2/models/M[/versions/V]/infer -> nodes; what names no version: a canary's share first
       /v1/embeddings, /v1/rerank, ...                     -> nodes, by the model that the Lua filter finds in the body
       /, /page/, /summary, /v1/models, /v2/...            -> the control process
       everything else                                     -> 404
gRPC   ModelInfer, as /predictions/M[/V], the path that grpc_outer.lua makes of its message -> the same
       other methods of the service                         -> the control process
"""

import re
from collections.abc import Iterator
from urllib.parse import quote

from deploy.gateway.envoy.clusters import cluster
from deploy.gateway.envoy.resources import ROUTES, TYPE, Resource, filled, seconds
from deploy.gateway.settings import Canary, Settings
from deploy.gateway.state import Fleet, Model, plain

HTTP, GRPC = "http", "grpc"
SERVICE = "inference.GRPCInferenceService"
# Bodies up to this are kept until they are answered, and sent to another node where one dies.
REPLAY_BYTES = 32 << 20
# Names in the metadata of a route, for the access log.
ABOUT = "gateway.route"
# And in that which the scripts see.
LUA = "envoy.filters.http.lua"
KEYS, BUFFER, UNPACKED, OPEN_RATE = "gateway.keys", "gateway.buffer", "gateway.unpacked", "gateway.open_rate"
INFLATE, DECOMPRESSOR = "gateway.inflate", "gateway.decompressor"
# Paths of the APIs of embedding servers -> what the header X-Api calls them (handlers.protocol.retrieval).
APIS = {"/v1/embeddings": "embeddings", "/v1/rerank": "rerank", "/v2/rerank": "rerank", "/rerank": "rerank"}
API_PATHS = rf"({'|'.join(APIS)}|/v1/models(/[^?]*)?)(\?.*)?"
# The namespace of the metadata that the name is found in.
API_MODEL = "gateway.api"
OPEN = ("/", "/v2/health/live", "/v2/health/ready")
# Bytes of a body where no key is asked for; and of a question to the control process, which reads no more.
OPEN_BYTES, QUESTION_BYTES = 4 << 10, 1 << 20


def routes(settings: Settings, fleet: Fleet, name: str) -> Resource:
    """Make the routes of the listener HTTP or GRPC."""
    to_nodes = [route for model in fleet.models.values() for route in _to_nodes(settings, fleet, model, name)]
    return {
        "@type": ROUTES,
        "name": name,
        # Envoy's own notes are not for clients.
        "response_headers_to_remove": ["x-envoy-upstream-service-time", "x-envoy-attempt-count"],
        "virtual_hosts": [
            {
                "name": name,
                "domains": ["*"],
                "request_body_buffer_limit": min(settings.limits.body_bytes, REPLAY_BYTES),
                "routes": [*to_nodes, *(_http(settings, fleet) if name == HTTP else _grpc(settings)), _nothing()],
            }
        ],
    }


def _to_nodes(settings: Settings, fleet: Fleet, model: Model, listener: str) -> Iterator[Resource]:
    """Route the paths of one model, versions first; the first that matches is taken."""
    for version in model.versions:
        for match in _version_matches(model, version, listener):
            yield _infer(settings, model.name, version, match, f"/predictions/{quote(model.name)}/{quote(version)}")
    canary = fleet.canaries.get(model.name)
    names = [model.name, *(alias for alias, name in settings.aliases.items() if name == model.name)]
    for match, rewritten in _default_matches(model, names, listener):
        if canary is not None and canary.version in model.versions:
            path = f"/predictions/{quote(model.name)}/{quote(canary.version)}"
            for chosen in _canary_matches(canary, match):
                yield _infer(settings, model.name, canary.version, chosen, path)
        yield _infer(settings, model.name, None, match, rewritten)


def _default_matches(model: Model, names: list[str], listener: str) -> Iterator[tuple[Resource, str | None]]:
    """Match the paths that name no version, each with what it is rewritten to.

    Args:
        model: what they are about.
        names: what bodies may call it.
        listener: HTTP or GRPC.
    """
    name = quote(model.name)
    yield {"path": f"/predictions/{name}", "headers": [_methods("GET|POST|PUT")]}, None
    if listener == HTTP:
        yield {"path": f"/v2/models/{name}/infer", "headers": [_methods("POST")]}, f"/predictions/{name}"
        for path in APIS:
            for each in names:
                named = {"filter": API_MODEL, "path": [{"key": "model"}], "value": {"string_match": {"exact": each}}}
                match = {"path": path, "headers": [_methods("POST")], "dynamic_metadata": [named]}
                yield match, f"/predictions/{name}"


def _version_matches(model: Model, version: str, listener: str) -> Iterator[Resource]:
    """Match the paths of one version: its very name first, then what counts as the same where no other does."""
    paths = [(f"/predictions/{quote(model.name)}/", "", _methods("GET|POST|PUT"))]
    if listener == HTTP:
        paths.append((f"/v2/models/{quote(model.name)}/versions/", "/infer", _methods("POST")))
    is_only = [plain(each) for each in model.versions].count(plain(version)) == 1
    for before, after, methods in paths:
        yield {"path": f"{before}{quote(version)}{after}", "headers": [methods]}
        if is_only:
            regex = f"{re.escape(before)}{re.escape(quote(plain(version)))}(\\.0)*{re.escape(after)}"
            yield {"safe_regex": {"regex": regex}, "headers": [methods]}


def _canary_matches(canary: Canary, match: Resource) -> Iterator[Resource]:
    if canary.header is not None:
        name, value = canary.header
        yield {**match, "headers": [*match["headers"], {"name": name, "string_match": {"exact": value}}]}
    if canary.percent > 0:
        share = {"numerator": round(canary.percent * 10_000), "denominator": "MILLION"}
        yield {**match, "runtime_fraction": {"default_value": share}}


def _methods(regex: str) -> Resource:
    return {"name": ":method", "string_match": {"safe_regex": {"regex": regex}}}


def _infer(settings: Settings, model: str, version: str | None, match: Resource, path: str | None) -> Resource:
    """Send a request to the nodes of a model; `path` is what its own is rewritten to."""
    action = filled(
        "route",
        "nodes",
        cluster=cluster(model, version),
        timeout_s=seconds(settings.limits.response_s),
        retries=settings.limits.attempts - 1,
        rewrite=None if path is None else _rewrite(path),
    )
    about = {"model": model} if version is None else {"model": model, "version": version}
    metadata: Resource = {ABOUT: about}
    route: Resource = {"match": match, "route": action, "metadata": {"filter_metadata": metadata}}
    if (api := APIS.get(match.get("path", ""))) is not None:
        metadata[LUA] = {"form": "api"}
        header = {"header": {"key": "x-api", "value": api}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        route["request_headers_to_add"] = [header]
    elif match.get("path", match.get("safe_regex", {}).get("regex", "")).startswith("/v2/"):
        metadata[LUA] = {"form": "v2"}
    return route


def _rewrite(path: str) -> Resource:
    """Put another path in front of the query; it holds no backslash, which would mean something."""
    return {"pattern": {"regex": r"^[^?]*"}, "substitution": path}


def _http(settings: Settings, fleet: Fleet) -> Iterator[Resource]:
    reads = {"headers": [_methods("GET|HEAD")]}
    yield _control({"path": "/", **reads}, settings, is_open=True)
    yield _control({"path_separated_prefix": "/page", **reads}, settings, is_open=True)
    # Probes are answered by Envoy itself, however busy the control process is.
    for path, status in (("/v2/health/live", 200), ("/v2/health/ready", 200 if fleet.is_ready else 503)):
        yield {
            "match": {"path": path, **reads},
            "direct_response": {"status": status},
            "typed_per_filter_config": _open(settings, HTTP),
        }
    yield _control({"path": "/summary", **reads}, settings)
    yield _control({"path_separated_prefix": "/v1/models", **reads}, settings)
    # Until the body has come, and where no model is called what it says.
    for path in APIS:
        limit = min(settings.limits.api_body_bytes, settings.limits.body_bytes)
        yield {**_nothing(path), "typed_per_filter_config": _buffers(limit, HTTP)}
    if not settings.management:
        yield _nothing("/v2/repository")
    # Of a model that has no node: the body is read to its end, so that its client gets the answer.
    infer = {"safe_regex": {"regex": "/v2/models/.+/infer"}, "headers": [_methods("POST")]}
    yield _control(infer, settings, is_infer=True)
    yield _control({"path": "/v2"}, settings)
    yield _control({"path_separated_prefix": "/v2"}, settings)


def _grpc(settings: Settings) -> Iterator[Resource]:
    for method in ("ServerLive", "ServerReady"):
        yield _control({"path": f"/{SERVICE}/{method}"}, settings, is_open=True, name=GRPC)
    # Until its path is made of its message, which may be as long as any.
    yield _control({"path": f"/{SERVICE}/ModelInfer"}, settings, is_infer=True)
    yield _control({"prefix": f"/{SERVICE}/"}, settings, name=GRPC)
    # Of a model that has no node.
    yield _control({"prefix": "/predictions/"}, settings, is_infer=True)


def _control(
    match: Resource, settings: Settings, *, is_open: bool = False, is_infer: bool = False, name: str = HTTP
) -> Resource:
    route: Resource = {
        "match": match,
        "route": filled("route", "control", timeout_s=seconds(settings.limits.response_s)),
        # What comes unpacked is unpacked before it is sent on; of gRPC's own compression its messages tell themselves.
        "request_headers_to_remove": ["authorization", "content-encoding"],
    }
    if is_open:
        route["typed_per_filter_config"] = _open(settings, name)
    elif not is_infer:
        route["typed_per_filter_config"] = _buffers(min(QUESTION_BYTES, settings.limits.body_bytes), name)
    return route


def _open(settings: Settings, name: str) -> Resource:
    """Make what holds where no key is asked for: a rate, hardly a body, and nothing is inflated."""
    kind = TYPE + "envoy.config.route.v3.FilterConfig"
    off = [*([KEYS] if settings.keys else []), *([INFLATE, DECOMPRESSOR] if name == HTTP else [])]
    return {
        **{each: {"@type": kind, "disabled": True} for each in off},
        OPEN_RATE: {"@type": kind, "disabled": False, "config": {}},
        **_buffers(OPEN_BYTES, name),
    }


def _buffers(most: int, name: str) -> Resource:
    kind = TYPE + "envoy.extensions.filters.http.buffer.v3.BufferPerRoute"
    filters = (BUFFER,) if name == HTTP else (BUFFER, UNPACKED)
    return {each: {"@type": kind, "buffer": {"max_request_bytes": most}} for each in filters}


def _nothing(under: str | None = None) -> Resource:
    match = {"prefix": "/"} if under is None else {"path_separated_prefix": under}
    return {"match": match, "direct_response": {"status": 404}}
