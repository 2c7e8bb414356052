"""The configuration of a node's Envoy; pure except for envoy.yaml beside it.

    NodeSettings, TorchServe's addresses -> bootstrap, read once: the port, and TorchServe's addresses
    NodeStatus                           -> routes, read again when they change: allowed requests, and the status

docs/how-to/kubernetes.md lists the requests; Envoy itself answers /ready and /live at once. A description with
a query is rejected: an adaptive model never finishes `?customized=true`, and stops serving.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from deploy.gateway.envoy.resources import ROUTES, Resource, filter_headers, make_address
from deploy.nodes.container.settings import NodeSettings
from deploy.nodes.run.node import Node, split_address
from deploy.protocol.rejections import DRAINING

BOOTSTRAP = Path(__file__).with_name("envoy.yaml")
READY = "ready"
STARTING = "starting"
LISTENER = "node"
ROUTES_FILE = "routes.json"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    words: str = STARTING  # READY, STARTING, or the models that are not READY
    is_draining: bool = False
    tokens: Mapping[str, str] = field(default_factory=dict)  # TorchServe's tokens by API


def bootstrap(settings: NodeSettings, torchserve: Node) -> Resource:
    document: Resource = yaml.safe_load(BOOTSTRAP.read_text(encoding="utf-8"))
    resources = document["static_resources"]
    (listener,) = resources["listeners"]
    listener["address"] = make_address(settings.address, settings.port)
    headers = filter_headers(settings.forward_headers, "node", "behind_gateway")
    listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"].insert(0, headers)
    for cluster in resources["clusters"]:
        name = cluster["name"]
        endpoint = {"endpoint": {"address": make_address(*split_address(getattr(torchserve, name)))}}
        cluster["load_assignment"] = {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}
    return document


def make_routes(status: NodeStatus) -> Resource:
    return {
        "@type": ROUTES,
        "name": LISTENER,
        "virtual_hosts": [{"name": LISTENER, "domains": ["*"], "routes": list(_list_routes(status))}],
    }


def _list_routes(status: NodeStatus) -> Iterator[Resource]:
    words = "draining" if status.is_draining else status.words
    code = 200 if words == READY else 503
    yield _answer({"path": "/ready", "headers": [_method("GET")]}, code, f"{words}\n", "text/plain")
    yield _answer({"path": "/live", "headers": [_method("GET")]}, 200, "live\n", "text/plain")
    yield _to("inference", {"prefix": "/predictions/"}, "GET|POST|PUT", status.tokens.get("inference"))
    # The query of /models selects a page; no other path has a query.
    no_query = [{"name": ":path", "string_match": {"safe_regex": {"regex": r"[^?]*"}}}]
    for match in ({"path": "/models"}, {"safe_regex": {"regex": r"/models/.+"}, "headers": no_query}):
        if status.is_draining or status.words == STARTING:
            words, kind = ("drains", DRAINING.type) if status.is_draining else ("starts", "Starting")
            error = json.dumps({"code": 503, "type": kind, "message": f"This node {words}."})
            yield _answer({**match, "headers": [_method("GET")]}, 503, error, "application/json")
        yield _to("management", match, "GET", status.tokens.get("management"))
    yield _to("metrics", {"path": "/metrics"}, "GET", None)
    yield {"match": {"prefix": "/predictions/"}, "direct_response": {"status": 405}}
    for path in ("/models", "/metrics", "/ready", "/live"):
        yield {"match": {"path": path}, "direct_response": {"status": 405}}
    others = [{**_method("GET"), "invert_match": True}]  # a description with a query is not found for any method
    yield {"match": {"prefix": "/models/", "headers": others}, "direct_response": {"status": 405}}
    yield {"match": {"prefix": "/"}, "direct_response": {"status": 404}}


def _answer(match: Resource, status: int, body: str, content_type: str) -> Resource:
    return {
        "match": match,
        "direct_response": {"status": status, "body": {"inline_string": body}},
        "response_headers_to_add": [_header("content-type", content_type)],
    }


def _to(cluster: str, match: Resource, methods: str, token: str | None) -> Resource:
    route: Resource = {
        "match": {**match, "headers": [*match.get("headers", []), _method(methods)]},
        "route": {"cluster": cluster, "timeout": "0s"},
    }
    if token is not None:
        route["request_headers_to_add"] = [_header("authorization", f"Bearer {token}")]
    return route


def _method(regex: str) -> Resource:
    return {"name": ":method", "string_match": {"safe_regex": {"regex": regex}}}


def _header(name: str, value: str) -> Resource:
    header = {"key": name, "value": value.replace("%", "%%")}  # a percent sign starts a command in Envoy's formats
    return {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
