"""The vocabulary of Envoy's API that the other modules share: durations, typed configurations, files, questions."""

from pathlib import Path
from typing import Any

Resource = dict[str, Any]

LUA = Path(__file__).parent / "lua"

TYPE = "type.googleapis.com/"
CLUSTER = TYPE + "envoy.config.cluster.v3.Cluster"
ENDPOINTS = TYPE + "envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENER = TYPE + "envoy.config.listener.v3.Listener"
ROUTES = TYPE + "envoy.config.route.v3.RouteConfiguration"


def seconds(value: float) -> str:
    """Write a duration as Envoy's JSON has it, to the millisecond."""
    return f"{value:.3f}s"


def typed(name: str, kind: str, /, **config: Any) -> Resource:
    """Name an extension with its configuration; `kind` is the message's full name."""
    return {"name": name, "typed_config": {"@type": TYPE + kind, **config}}


def watched(path: str) -> Resource:
    """Name the file that a kind of resource is read from, relative to Envoy's working folder."""
    return {"path_config_source": {"path": f"./{path}"}, "resource_api_version": "V3"}


def address(host: str, port: int) -> Resource:
    """Write a socket's address."""
    return {"socket_address": {"address": host, "port_value": port}}


def lua(script: str, before: str = "", name: str = "envoy.filters.http.lua") -> Resource:
    """Make a filter of a file of lua/, with what is to stand in front of it."""
    source = (LUA / f"{script}.lua").read_text(encoding="utf-8")
    code = {"inline_string": before + source}
    return typed(name, "envoy.extensions.filters.http.lua.v3.Lua", default_source_code=code)


def sent(header: str, regex: str) -> Resource:
    """Ask whether a request has a header of this kind."""
    asked = typed("header", "envoy.type.matcher.v3.HttpRequestHeaderMatchInput", header_name=header)
    return {"single_predicate": {"input": asked, "value_match": {"safe_regex": {"google_re2": {}, "regex": regex}}}}


def failed() -> Resource:
    """Ask whether the answer is an error."""
    asked = typed("status", "envoy.type.matcher.v3.HttpResponseHeaderMatchInput", header_name=":status")
    return {"single_predicate": {"input": asked, "value_match": {"safe_regex": {"google_re2": {}, "regex": "[45].*"}}}}


def only(filter_: Resource, asked: Resource) -> Resource:
    """Make a filter that requests pass by where the answer is no."""
    skip = typed("skip", "envoy.extensions.filters.common.matcher.action.v3.SkipFilter")
    matcher = {"predicate": {"not_matcher": asked}, "on_match": {"action": skip}}
    return typed(
        filter_["name"],
        "envoy.extensions.common.matching.v3.ExtensionWithMatcher",
        extension_config=filter_,
        xds_matcher={"matcher_list": {"matchers": [matcher]}},
    )
