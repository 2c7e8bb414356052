"""Words of JSON Schema, as deploy.gateway.openapi and what stands beside it write them. Pure."""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

JSON = "application/json"


def object_of(properties: Mapping[str, Schema]) -> Schema:
    """Describe an object that has all of these properties."""
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def list_of(items: Schema) -> Schema:
    """Describe a list."""
    return {"type": "array", "items": items}


def ref(name: str) -> Schema:
    """Refer to a schema of the document's own."""
    return {"$ref": f"#/components/schemas/{name}"}
