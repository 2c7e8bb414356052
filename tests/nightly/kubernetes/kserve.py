"""KServe's objects against the models of its own Python package.

kserve/models/*.py, read as text -> a JSON schema: fields, types, what is required; unknown fields refused
types of Kubernetes in them      -> Kubernetes' own schemas

The package is not imported: its models would accept any field and forget it, and bring a server with them.
"""

import ast
import functools
import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import referencing
from referencing.jsonschema import DRAFT202012

from deploy.models import ROOT
from tests.nightly.kubernetes.core import NEWEST, definitions, registry
from tests.nightly.kubernetes.rendered import Object

MODELS = ROOT / ".tools" / "wheels" / "kserve" / "models"
GROUP = "serving.kserve.io"
PRIMITIVES: dict[str, Any] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "object": {},
    "datetime": {"type": "string"},
    # A quantity, which the models have as a class without fields.
    "ResourceQuantity": {"type": ["string", "number"]},
    "V1beta1MetricQuantity": {"type": ["string", "number"]},
    # Of a status, and of models on several machines: nothing here has them.
    "KnativeDevServingPkgApisServingV1TrafficTarget": {"type": "object"},
    "V1alpha1WorkerSpec": {"type": "object"},
}
NESTED = re.compile(r"(list\[|dict\(str, )(.*)[])]")
REQUIRED = re.compile(r"Invalid value for `(\w+)`, must not be `None`")
CLASS = re.compile(r"^class (\w+)\(object\)", re.MULTILINE)
# Where Kubernetes' types are that the models call V1 and no more.
PACKAGES = ("k8sioapicorev1", "k8sioapimachinerypkgapismetav1", "k8sioapiappsv1")


def is_kserve(each: Object) -> bool:
    """Whether it is one of KServe's."""
    return str(each["apiVersion"]).startswith(f"{GROUP}/")


def problems(each: Object) -> list[str]:
    """What is wrong with an object, each with its place."""
    version = each["apiVersion"].partition("/")[2]
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in _validator(f"{version.capitalize()}{each['kind']}").iter_errors(each)
    ]


@functools.cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    assert MODELS.is_dir(), "make packages fetches KServe's models (tests/nightly/packages/kubernetes.sh)"
    known: dict[str, Any] = {}
    _add(name, known)
    schema = {"$ref": f"#/$defs/{name}", "$defs": known}
    resource = referencing.Resource.from_contents(schema, default_specification=DRAFT202012)
    return jsonschema.Draft202012Validator(schema, registry=registry(NEWEST).with_resource("", resource))


@functools.cache
def _files() -> dict[str, Path]:
    """Where each class is."""
    texts = {path: path.read_text(encoding="utf-8") for path in MODELS.glob("*.py")}
    return {match[1]: path for path, text in texts.items() if (match := CLASS.search(text))}


@functools.cache
def _kubernetes() -> dict[str, str]:
    """Full names of Kubernetes' types, by how the models write the name of their Go package."""
    types = definitions(NEWEST).contents["$defs"]
    return {name.removeprefix("io.").replace("k8s.", "k8sio", 1).replace(".", "").lower(): name for name in types}


def _add(name: str, known: dict[str, Any]) -> None:
    """Make the schema of a class of the package, and of all that it refers to."""
    file = _files()[name]
    text = file.read_text(encoding="utf-8")
    types, names = _literal(text, "openapi_types"), _literal(text, "attribute_map")
    known[name] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {names[field]: _schema(kind, known) for field, kind in types.items()},
        "required": sorted({names[field] for field in REQUIRED.findall(text)}),
    }


def _schema(kind: str, known: dict[str, Any]) -> Any:
    if kind in PRIMITIVES:
        return PRIMITIVES[kind]
    if nested := NESTED.fullmatch(kind):
        inner = _schema(nested[2], known)
        return (
            {"type": "array", "items": inner}
            if nested[1] == "list["
            else {
                "type": "object",
                "additionalProperties": inner,
            }
        )
    if kind in _files():
        if kind not in known:
            known[kind] = {}
            _add(kind, known)
        return {"$ref": f"#/$defs/{kind}"}
    for package in ("", *PACKAGES):
        if (full := _kubernetes().get((package + kind.removeprefix("V1" if package else "")).lower())) is not None:
            return {"$ref": f"_definitions.json#/$defs/{full}"}
    raise LookupError(f"no schema of {kind}")


def _literal(text: str, name: str) -> dict[str, str]:
    """A class's dictionary of that name."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise LookupError(f"no {name}")
