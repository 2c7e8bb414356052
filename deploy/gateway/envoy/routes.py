"""Which request goes where.

HTTP   /predictions/M[/V], /v2/models/M[/versions/V]/infer -> nodes; what names no version: a canary's share first
       /v1/models/M:predict, /invocations                  -> the same; of SageMaker's the model that a setting names
       /v1/embeddings, /v1/rerank, ...                     -> nodes, by the model that the Lua filter finds in the body
       /, /page/, /summary, /v1/models, /v2/...            -> the control process; health and /ping: Envoy itself
       everything else                                     -> 404
gRPC   ModelInfer, as /predictions/M[/V], the path that grpc_outer.lua makes of its message -> the same
       other methods of the service                         -> the control process

route.yaml has the routes that are the same whatever is served; this module makes those of each model. They match exact
paths in the form that path.lua and grpc_outer.lua write, so that no name can make a route that Envoy rejects.
"""

from collections.abc import Iterator
from functools import partial
from urllib.parse import quote

from deploy.gateway.envoy.clusters import CONTROL, cluster
from deploy.gateway.envoy.resources import Resource, filled, seconds
from deploy.gateway.settings import Canary, Settings
from deploy.gateway.state import Fleet, Model, plain

HTTP = "http"
GRPC = "grpc"
# Bodies up to this are kept until they are answered, and sent to another node where one dies.
REPLAY_BYTES = 32 << 20
# Paths of the APIs of embedding servers -> what the header X-Api calls them (handlers.protocol.retrieval).
APIS = {"/v1/embeddings": "embeddings", "/v1/rerank": "rerank", "/v2/rerank": "rerank", "/rerank": "rerank"}
API_PATHS = rf"({'|'.join(APIS)}|/v1/models(/[^?]*)?)(\?.*)?"
# Version "1" is also reached as "1.0", "1.0.0" and "1.0.0.0".
ZEROS = 3
# What probes ask for.
READY_PATHS = ("/v2/health/ready", "/ping")
# The namespace of the metadata that the name is found in.
API_MODEL = "gateway.api"
# Bytes of a question to the control process, which reads no more.
QUESTION_BYTES = 1 << 20

encoded = partial(quote, safe="")


def routes(settings: Settings, fleet: Fleet, name: str) -> Resource:
    """Make the routes of the listener HTTP or GRPC."""
    limits = settings.limits
    timeout_s, question_bytes = seconds(limits.response_s), min(QUESTION_BYTES, limits.body_bytes)
    fixed = filled(
        "route",
        name,
        timeout_s=timeout_s,
        ready_status=200 if fleet.is_ready else 503,
        keys=filled("route", "disabled") if settings.keys else None,
        question_bytes=question_bytes,
        api_bytes=min(limits.api_body_bytes, limits.body_bytes),
        no_repository=None if settings.management else filled("route", "no_repository"),
    )
    first = filled("route", "methods", timeout_s=timeout_s, question_bytes=question_bytes) if name == HTTP else []
    models = fleet.models
    # The model of /invocations, which names none.
    invoked = settings.invocations or ("".join(models) if len(models) == 1 else None)
    to_nodes = [route for model in models.values() for route in _to_nodes(settings, fleet, model, name, invoked)]
    replay_bytes = min(limits.body_bytes, REPLAY_BYTES)
    every = [*first, *to_nodes, *fixed]
    table: Resource = filled("route", "table", name=name, replay_bytes=replay_bytes, routes=every)
    return shut(table, to_nodes=True) if fleet.is_shut else table


def shut(table: Resource, *, to_nodes: bool = False) -> Resource:
    """Return routes whose probes fail; with `to_nodes` inferences get 503, too."""

    def close(route: Resource) -> Resource:
        is_probe = route["match"].get("path") in READY_PATHS
        is_to_node = route.get("route", {}).get("cluster", CONTROL) != CONTROL
        if not is_probe and not (to_nodes and is_to_node):
            return route
        kept = {key: each for key, each in route.items() if key in ("match", "typed_per_filter_config")}
        return {**kept, "direct_response": {"status": 503}}

    (host,) = table["virtual_hosts"]
    return {**table, "virtual_hosts": [{**host, "routes": [close(route) for route in host["routes"]]}]}


def _to_nodes(settings: Settings, fleet: Fleet, model: Model, listener: str, invoked: str | None) -> Iterator[Resource]:
    """Route the paths of one model, versions first; the first that matches is taken."""
    path = f"/predictions/{encoded(model.name)}"
    for version in model.versions:
        for match in _version_matches(model, version, listener):
            yield _infer(settings, model.name, version, match, f"{path}/{encoded(version)}")
    canary = fleet.canaries.get(model.name)
    matches = [{"path": path}]
    if listener == HTTP:
        matches += _other_matches(settings, model.name, is_invoked=model.name == invoked)
    for match in matches:
        if canary is not None and canary.version in model.versions:
            for chosen in _canary_matches(canary, match):
                yield _infer(settings, model.name, canary.version, chosen, f"{path}/{encoded(canary.version)}")
        yield _infer(settings, model.name, None, match, None if match["path"] == path else path)


def _other_matches(settings: Settings, model: str, *, is_invoked: bool) -> Iterator[Resource]:
    """Match what other APIs call a model without a version."""
    yield {"path": f"/v2/models/{encoded(model)}/infer"}
    yield {"path": f"/v1/models/{encoded(f'{model}:predict')}"}
    named = {"name": "model_name", "string_match": {"exact": encoded(model)}}
    yield {"path": "/invocations", "query_parameters": [named]}
    if is_invoked:
        names_another = {"name": ":path", "string_match": {"contains": "model_name="}, "invert_match": True}
        yield {"path": "/invocations", "headers": [names_another]}
    for path in APIS:
        for each in (model, *(alias for alias, name in settings.aliases.items() if name == model)):
            found = {"filter": API_MODEL, "path": [{"key": "model"}], "value": {"string_match": {"exact": each}}}
            yield {"path": path, "dynamic_metadata": [found]}


def _version_matches(model: Model, version: str, listener: str) -> Iterator[Resource]:
    """Match the paths of one version: its very name, and what counts as the same where no other does."""
    short, forms = plain(version), [version]
    if [plain(each) for each in model.versions].count(short) == 1:
        forms += [short + ".0" * zeros for zeros in range(ZEROS + 1)]
    for form in dict.fromkeys(map(encoded, forms)):
        yield {"path": f"/predictions/{encoded(model.name)}/{form}"}
        if listener == HTTP:
            yield {"path": f"/v2/models/{encoded(model.name)}/versions/{form}/infer"}


def _canary_matches(canary: Canary, match: Resource) -> Iterator[Resource]:
    if canary.header is not None:
        name, value = canary.header
        yield {**match, "headers": [*match.get("headers", []), {"name": name, "string_match": {"exact": value}}]}
    if canary.percent > 0:
        share = {"numerator": round(canary.percent * 10_000), "denominator": "MILLION"}
        yield {**match, "runtime_fraction": {"default_value": share}}


def _infer(settings: Settings, model: str, version: str | None, match: Resource, path: str | None) -> Resource:
    """Send a request to the nodes of a model; `path` is what its own is rewritten to."""
    api = APIS.get(match["path"])
    form = "api" if api else "v2" if match["path"].startswith("/v2/") else None
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
