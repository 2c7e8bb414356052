"""The vocabulary of Envoy's API that the other modules share: durations, addresses, scripts, files."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from handlers.errors import InvalidConfig

Resource = dict[str, Any]

LUA = Path(__file__).parent / "lua"

TYPE = "type.googleapis.com/"
ENDPOINTS = TYPE + "envoy.config.endpoint.v3.ClusterLoadAssignment"
ROUTES = TYPE + "envoy.config.route.v3.RouteConfiguration"


def seconds(value: float) -> str:
    """Write a duration as Envoy's JSON has it, to the millisecond."""
    return f"{value:.3f}s"


def watched(path: str) -> Resource:
    """Name the file that a kind of resource is read from, relative to Envoy's working folder."""
    return {"path_config_source": {"path": f"./{path}"}, "resource_api_version": "V3"}


def address(host: str, port: int) -> Resource:
    """Write a socket's address."""
    return {"socket_address": {"address": host, "port_value": port}}


def lua(script: str, before: str = "", name: str = "envoy.filters.http.lua") -> Resource:
    """Make a filter of a file of lua/, with what is to stand in front of it."""
    source = (LUA / f"{script}.lua").read_text(encoding="utf-8")
    kind = TYPE + "envoy.extensions.filters.http.lua.v3.Lua"
    return {"name": name, "typed_config": {"@type": kind, "default_source_code": {"inline_string": before + source}}}


@cache
def _document(name: str) -> Any:
    return yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))


def filled(name: str, part: str | None = None, /, **values: Any) -> Any:
    """Read NAME.yaml, or a part of it, with a value in the place of each `$KEY`; where that is None nothing stands."""

    def fill(document: Any) -> Any:
        if isinstance(document, str) and document.startswith("$"):
            return values[document[1:]]
        if isinstance(document, dict):
            return {key: each for key, inner in document.items() if (each := fill(inner)) is not None}
        if isinstance(document, list):
            return [each for inner in document if (each := fill(inner)) is not None]
        return document

    return fill(_document(name) if part is None else _document(name)[part])


def passed_headers(own: Iterable[str], *lists: str) -> Resource:
    """Make a filter that removes every header of a request but `own` and those of these lists of headers.yaml."""
    names = {name.lower() for name in own}
    if refused := [name for name in sorted(names) if name in filled("headers", "never") or name.startswith("x-envoy-")]:
        raise InvalidConfig(f"forward_headers: {', '.join(refused)} must not reach a node")
    names.update(*(filled("headers", part) for part in lists))
    kept = ", ".join(f'["{name}"] = true' for name in sorted(names))
    source = f"local KEPT = {{{kept}}}\nfunction envoy_match(name) return not KEPT[name] end"
    made: Resource = filled("headers", "filter", source=source)
    return made
