"""The vocabulary of Envoy's API that the other modules share: durations, typed configurations, references to files."""

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
