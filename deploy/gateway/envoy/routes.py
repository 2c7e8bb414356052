"""Which request goes where.

HTTP   /predictions/M[/V], /v2/models/M[/versions/V]/infer -> nodes; what names no version: a canary's share first
       /v1/embeddings, /v1/rerank, ...                     -> nodes, by the model that the Lua filter finds in the body
       /, /page/, /summary, /v1/models, /v2/...            -> the control process
       everything else                                     -> 404
gRPC   ModelInfer, as /predictions/M[/V], the path that grpc_outer.lua makes of its message -> the same
       other methods of the service                         -> the control process

route.yaml has the routes that are the same whatever is served; this module makes those of each model.
"""

import re
from collections.abc import Iterator
from urllib.parse import quote

from deploy.gateway.envoy.clusters import cluster
from deploy.gateway.envoy.resources import Resource, filled, seconds
from deploy.gateway.settings import Canary, Settings
from deploy.gateway.state import Fleet, Model, plain

HTTP, GRPC = "http", "grpc"
# Bodies up to this are kept until they are answered, and sent to another node where one dies.
REPLAY_BYTES = 32 << 20
# Paths of the APIs of embedding servers -> what the header X-Api calls them (handlers.protocol.retrieval).
APIS = {"/v1/embeddings": "embeddings", "/v1/rerank": "rerank", "/v2/rerank": "rerank", "/rerank": "rerank"}
API_PATHS = rf"({'|'.join(APIS)}|/v1/models(/[^?]*)?)(\?.*)?"
# The namespace of the metadata that the name is found in.
API_MODEL = "gateway.api"
# Bytes of a question to the control process, which reads no more.
QUESTION_BYTES = 1 << 20


def routes(settings: Settings, fleet: Fleet, name: str) -> Resource:
    """Make the routes of the listener HTTP or GRPC."""
    limits = settings.limits
    fixed = filled(
        "route",
        name,
        timeout_s=seconds(limits.response_s),
        ready_status=200 if fleet.is_ready else 503,
        keys=filled("route", "disabled") if settings.keys else None,
        question_bytes=min(QUESTION_BYTES, limits.body_bytes),
        api_bytes=min(limits.api_body_bytes, limits.body_bytes),
        no_repository=None if settings.management else filled("route", "no_repository"),
    )
    to_nodes = [route for model in fleet.models.values() for route in _to_nodes(settings, fleet, model, name)]
    replay_bytes = min(limits.body_bytes, REPLAY_BYTES)
    table: Resource = filled("route", "table", name=name, replay_bytes=replay_bytes, routes=[*to_nodes, *fixed])
    return table


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
    api = APIS.get(match.get("path", ""))
    is_v2 = match.get("path", match.get("safe_regex", {}).get("regex", "")).startswith("/v2/")
    form = "api" if api else "v2" if is_v2 else None
    header = {"header": {"key": "x-api", "value": api}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    route: Resource = filled(
        "route",
        "to_nodes",
        match=match,
        cluster=cluster(model, version),
        timeout_s=seconds(settings.limits.response_s),
        retries=settings.limits.attempts - 1,
        # It holds no backslash, which would mean something.
        rewrite=path and {"pattern": {"regex": r"^[^?]*"}, "substitution": path},
        headers=[header] if api else None,
        about={"model": model} if version is None else {"model": model, "version": version},
        form=form and {"form": form},
    )
    return route
