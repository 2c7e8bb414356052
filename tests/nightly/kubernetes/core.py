"""Kubernetes' own schemas, those that kubernetes-validate carries, each read once."""

import functools
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import referencing
from kubernetes_validate import utils
from referencing.jsonschema import DRAFT202012

# The oldest release that is still somewhere in service, one with image volumes, and the newest that has schemas here.
OLDEST, NEWEST = "1.29", "1.37"
VERSIONS = (OLDEST, "1.33", NEWEST)
# Of whole groups: what others define.
CUSTOM = ("keda.sh", "monitoring.coreos.com", "serving.kserve.io")


def is_core(each: dict[str, Any]) -> bool:
    """Whether it is one of Kubernetes' own."""
    return str(each["apiVersion"]).partition("/")[0] not in CUSTOM


@functools.cache
def definitions(version: str) -> referencing.Resource[Any]:
    """Every type of a release, by its full name."""
    return referencing.Resource.from_contents(
        utils.schema_contents(f"{_folder(version)}/_definitions.json", version),
        default_specification=DRAFT202012,
    )


@functools.cache
def registry(version: str) -> referencing.Registry[Any]:
    """Where the schemas of a release refer to."""
    found: referencing.Registry[Any] = referencing.Registry()
    for name in ("_definitions.json", "file:///_definitions.json"):
        found = found.with_resource(name, definitions(version))
    return found.crawl()


@functools.cache
def validator(api_version: str, kind: str, version: str) -> jsonschema.Draft202012Validator:
    """What holds objects of a kind against a release, unknown fields refused."""
    short = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = utils.schema_contents(f"{_folder(version)}/{kind.lower()}-{short}.json", version)
    return jsonschema.Draft202012Validator(schema, registry=registry(version))


def problems(each: dict[str, Any], version: str) -> list[str]:
    """What is wrong with an object, each with its place."""
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in validator(each["apiVersion"], each["kind"], version).iter_errors(each)
    ]


def _folder(version: str) -> str:
    return f"kubernetes-json-schema/v{version}.0-local-strict"
