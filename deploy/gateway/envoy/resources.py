"""Shared parts of Envoy's API: durations, addresses, Lua filters, templates."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from handlers.errors import InvalidConfig
from handlers.protocol import statuses, wire
from torchserve_client.payloads import Json

Resource = Json

FOLDER = Path(__file__).parent

TYPE = "type.googleapis.com/"
ROUTES = TYPE + "envoy.config.route.v3.RouteConfiguration"


def format_seconds(value: float) -> str:
    """Format a duration for Envoy's JSON, to the millisecond."""
    return f"{value:.3f}s"


def make_source(path: str) -> Resource:
    """Make the source of a kind of resource: a file in Envoy's working folder."""
    return {"path_config_source": {"path": f"./{path}"}, "resource_api_version": "V3"}


def make_address(host: str, port: int) -> Resource:
    return {"socket_address": {"address": host, "port_value": port}}


def make_lua_filter(*scripts: str, header: str = "", name: str = "envoy.filters.http.lua") -> Resource:
    """Make a filter from files of lua/, below a header of constants."""
    source = "".join(_read(f"lua/{script}.lua") for script in scripts)
    kind = TYPE + "envoy.extensions.filters.http.lua.v3.Lua"
    return {"name": name, "typed_config": {"@type": kind, "default_source_code": {"inline_string": header + source}}}


def _read(name: str) -> str:
    """Read a file, and write each `$NAME` of the wire; Envoy has the names of headers in lower case."""

    def written(found: re.Match[str]) -> str:
        name = found[1]
        value = str(getattr(wire, name, None) or getattr(statuses, name))
        return value.lower() if name.endswith("_HEADER") else value

    return re.sub(r"\$([A-Z][A-Z_]+)", written, (FOLDER / name).read_text(encoding="utf-8"))


@cache
def _read_template(name: str) -> Any:
    return yaml.safe_load(_read(f"{name}.yaml"))


def fill_template(name: str, part: str | None = None, /, **values: object) -> Any:
    """Read NAME.yaml or a part of it, and replace each `$KEY` by its value; None removes the entry."""

    def fill(document: object) -> Any:
        if isinstance(document, str) and document.startswith("$"):
            return values[document[1:]]
        if isinstance(document, dict):
            return {key: each for key, inner in document.items() if (each := fill(inner)) is not None}
        if isinstance(document, list):
            return [each for inner in document if (each := fill(inner)) is not None]
        return document

    return fill(_read_template(name) if part is None else _read_template(name)[part])


def filter_headers(extra: Iterable[str], *lists: str) -> Resource:
    """Make a filter that removes all request headers except `extra` and those of these lists of headers.yaml."""
    names = {name.lower() for name in extra}
    if rejected := [
        name for name in sorted(names) if name in fill_template("headers", "never") or name.startswith("x-envoy-")
    ]:
        raise InvalidConfig(f"forward_headers: {', '.join(rejected)} must not reach a node")
    names.update(*(fill_template("headers", part) for part in lists))
    kept = ", ".join(f'["{name}"] = true' for name in sorted(names))
    source = f"local KEPT = {{{kept}}}\nfunction envoy_match(name) return not KEPT[name] end"
    made: Resource = fill_template("headers", "filter", source=source)
    return made
