"""The routes of requests.

HTTP   /predictions/M[/V], /v2/models/M[/versions/V]/infer -> nodes; without a version: a canary's share first
       /v1/models/M:predict, /invocations                  -> nodes; /invocations (SageMaker): the model of a setting
       /v1/embeddings, /v1/rerank, ...                     -> nodes, by the model that the Lua filter finds in the body
       /embed, /v1/embed, /rerank without a model          -> nodes of the only model of that task, or a setting's
       /, /page/, /summary, /v1/models, /v2/...            -> the control process; health and /ping: Envoy itself
       all others                                          -> 404
gRPC   ModelInfer, as /predictions/M[/V], which grpc_outer.lua reads from the message -> nodes
       other methods of the service                         -> the control process

route.yaml contains the fixed routes; this module makes the routes of each model. They match exact paths in the encoding
of path.lua and grpc_outer.lua, so that no model's name can make a route that Envoy rejects.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from urllib.parse import quote

from deploy.gateway.envoy.clusters import CONTROL, name_cluster
from deploy.gateway.envoy.resources import Resource, fill_template, format_seconds
from deploy.gateway.settings import Canary, GatewaySettings
from deploy.gateway.state import Fleet, ServedModel
from deploy.protocol.description import find_only, strip_zeros
from handlers.protocol.wire import API_HEADER, API_PATTERN, APIS

HTTP = "http"
GRPC = "grpc"
# Bodies up to this size are sent to another node if a node dies. Envoy holds them twice: with a larger limit a hundred
# photographs filled half of its heap, from where on it closes connections.
REPLAY_BYTES = 4 << 20
API_PATHS = rf"({API_PATTERN}|/v1/models(/[^?]*)?)(\?.*)?"
ZEROS = 3  # zeros that a request may append to a version: "1.0", "1.0.0" and "1.0.0.0" for "1"
READY_PATHS = ("/v2/health/ready", "/ping")  # paths of probes
API_MODEL = "gateway.api"  # the namespace of the metadata in which the Lua filter writes the model's name
QUESTION_BYTES = 1 << 20  # maximum body of a request to the control process

encode = partial(quote, safe="")


def make_routes(settings: GatewaySettings, fleet: Fleet, name: str) -> Resource:
    limits = settings.limits
    timeout_s, question_bytes = format_seconds(limits.response_s), min(QUESTION_BYTES, limits.body_bytes)
    fixed = fill_template(
        "route",
        name,
        timeout_s=timeout_s,
        ready_status=200 if fleet.is_ready else 503,
        keys=fill_template("route", "disabled"),
        question_bytes=question_bytes,
        api_prefixes=f"{API_PATTERN}(/.*)?",
        api_bytes=min(limits.api_body_bytes, limits.body_bytes),
        no_repository=None if settings.management else fill_template("route", "no_repository"),
    )
    own = fill_template("route", "methods", timeout_s=timeout_s, question_bytes=question_bytes) if name == HTTP else []
    models = fleet.models
    documents = {name: model.metadata for name, model in models.items()}
    # The models of requests that name none, by their path.
    nameless = {path: find_only(path, documents, settings.default_models) for path in APIS}
    nameless["/invocations"] = settings.invocations or ("".join(models) if len(models) == 1 else "")
    to_nodes = [route for model in models.values() for route in _to_nodes(settings, fleet, model, name, nameless)]
    replay_bytes = min(limits.body_bytes, REPLAY_BYTES)
    every = [*own, *to_nodes, *fixed]
    cors = None
    if settings.cors and name == HTTP:
        origins = [{"safe_regex": {"regex": ".*"}} if each == "*" else {"exact": each} for each in settings.cors]
        cors = fill_template("route", "cors", origins=origins)
        every.insert(0, fill_template("route", "preflight", timeout_s=timeout_s))
    table: Resource = fill_template("route", "table", name=name, replay_bytes=replay_bytes, cors=cors, routes=every)
    return shut_routes(table, to_nodes=True) if fleet.is_shut else table


def shut_routes(table: Resource, *, to_nodes: bool = False) -> Resource:
    """Return routes whose probes return 503; with `to_nodes` inferences, too."""

    def close(route: Resource) -> Resource:
        is_probe = route["match"].get("path") in READY_PATHS
        is_to_node = route.get("route", {}).get("cluster", CONTROL) != CONTROL
        if not is_probe and not (to_nodes and is_to_node):
            return route
        kept = {key: each for key, each in route.items() if key in ("match", "typed_per_filter_config")}
        return {**kept, "direct_response": {"status": 503}}

    (host,) = table["virtual_hosts"]
    return {**table, "virtual_hosts": [{**host, "routes": [close(route) for route in host["routes"]]}]}


def _to_nodes(
    settings: GatewaySettings, fleet: Fleet, model: ServedModel, listener: str, nameless: Mapping[str, str]
) -> Iterator[Resource]:
    """Yield the routes of one model, versions first; Envoy uses the first match."""
    path = f"/predictions/{encode(model.name)}"
    for version in model.versions:
        for match in _version_matches(model, version, listener):
            yield _route(settings, model, version, match, f"{path}/{encode(version)}")
    canary = fleet.canaries.get(model.name)
    matches = [{"path": path}]
    if listener == HTTP:
        matches += _other_matches(settings, model.name, nameless)
    for match in matches:
        if canary is not None and canary.version in model.versions:
            for chosen in _canary_matches(canary, match):
                yield _route(settings, model, canary.version, chosen, f"{path}/{encode(canary.version)}")
        yield _route(settings, model, None, match, None if match["path"] == path else path)


def _other_matches(settings: GatewaySettings, model: str, nameless: Mapping[str, str]) -> Iterator[Resource]:
    yield {"path": f"/v2/models/{encode(model)}/infer"}
    yield {"path": f"/v1/models/{encode(f'{model}:predict')}"}
    named = {"name": "model_name", "string_match": {"exact": encode(model)}}
    yield {"path": "/invocations", "query_parameters": [named]}
    if nameless["/invocations"] == model:
        names_another = {"name": ":path", "string_match": {"contains": "model_name="}, "invert_match": True}
        yield {"path": "/invocations", "headers": [names_another]}
    for path in APIS:
        unnamed = [""] if nameless[path] == model else []  # model.lua finds "" in a body that names no model
        for each in (model, *unnamed, *(alias for alias, name in settings.aliases.items() if name == model)):
            found = {"filter": API_MODEL, "path": [{"key": "model"}], "value": {"string_match": {"exact": each}}}
            yield {"path": path, "dynamic_metadata": [found]}


def _version_matches(model: ServedModel, version: str, listener: str) -> Iterator[Resource]:
    """Yield the matches of one version: its name, and names with other zeros if they are unambiguous."""
    short, forms = strip_zeros(version), [version]
    if [strip_zeros(each) for each in model.versions].count(short) == 1:
        forms += [short + ".0" * zeros for zeros in range(ZEROS + 1)]
    for form in dict.fromkeys(map(encode, forms)):
        yield {"path": f"/predictions/{encode(model.name)}/{form}"}
        if listener == HTTP:
            yield {"path": f"/v2/models/{encode(model.name)}/versions/{form}/infer"}


def _canary_matches(canary: Canary, match: Resource) -> Iterator[Resource]:
    if canary.header is not None:
        name, value = canary.header
        yield {**match, "headers": [*match.get("headers", []), {"name": name, "string_match": {"exact": value}}]}
    if canary.percent > 0:
        share = {"numerator": round(canary.percent * 10_000), "denominator": "MILLION"}
        yield {**match, "runtime_fraction": {"default_value": share}}


def _route(
    settings: GatewaySettings, model: ServedModel, version: str | None, match: Resource, path: str | None
) -> Resource:
    """Route a request to the nodes of a model, with its path rewritten to `path`."""
    api = APIS.get(match["path"])
    form = "v2" if match["path"].startswith("/v2/") else None
    if api:
        form = "cohere" if api.startswith("cohere") else "api"
    header = {"header": {"key": API_HEADER, "value": api}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    route: Resource = fill_template(
        "route",
        "to_nodes",
        match=match,
        cluster=name_cluster(model.name, version),
        timeout_s=format_seconds(settings.limits.response_s),
        retries=settings.limits.attempts - 1,
        # A path contains no backslash, which would refer to a group.
        rewrite=path and {"pattern": {"regex": r"^[^?]*"}, "substitution": path},
        headers=[header] if api else None,
        about={"model": model.name, **({"version": version} if version else {}), **_describe_loss(model, version)},
        form=form and {"form": form},
    )
    return route


def _describe_loss(model: ServedModel, version: str | None) -> dict[str, str]:
    """Return why a request for a lost version, or a model without others, gets 503; its message has it."""
    reasons = [each.lost for each in model.versions.values() if version in (None, each.version)]
    # It becomes a part of a JSON string.
    return {"lost": f" {json.dumps(reasons[0])[1:-1]}."} if all(reasons) else {}
