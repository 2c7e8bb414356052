"""docs/gateway.md names every setting with its default, and every error."""

import dataclasses
from typing import Any

import pytest
from pydantic.fields import FieldInfo

from deploy.gateway.envoy.access_log import access_log
from deploy.gateway.envoy.errors import GRPC, answers
from deploy.gateway.settings import Key, Limits, Ports, Settings
from tests.pages import section, table

PAGE = "docs/gateway.md"


@pytest.mark.parametrize(
    ("heading", "cls"),
    [("## Settings", Settings), ("### Ports", Ports), ("### Keys", Key), ("### Limits", Limits)],
)
def test_settings_are_those_of_the_gateway(heading: str, cls: type[Any]) -> None:
    documented = {row[0].strip("`"): row[1].strip("`") for row in table(section(PAGE, heading))}
    own = {field.name: written(field) for field in dataclasses.fields(cls)}
    assert documented == {name: value or f"see [below](#{name})" for name, value in own.items()}


def written(field: "dataclasses.Field[Any]") -> str | None:
    """A default as YAML has it; None for that of a part, which has a table of its own."""
    default = field.default
    if field.name in ("ports", "limits"):
        return None
    if isinstance(default, FieldInfo) and default.default_factory is dict:
        return "{}"
    if default is dataclasses.MISSING:
        return "required"
    if isinstance(default, float):
        return f"{default:g}"
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    return "[]" if default == () else str(default)


def test_errors_are_those_of_the_gateway() -> None:
    rows = {(int(row[0]), row[1].strip("`"), int(row[2])) for row in table(section(PAGE, "## Errors of the gateway"))}
    made = {(answer.status, answer.type, GRPC[answer.status]) for answer in answers(Settings())}
    assert rows == made | {(400, "MalformedForm", 3)}


def test_fields_of_the_access_log_are_named() -> None:
    fields = access_log()[0]["typed_config"]["log_format"]["json_format"]
    text = section(PAGE, "## The access log")
    assert [name for name in fields if f"`{name}`" not in text] == []
