"""deploy/kubernetes as `kubectl kustomize` renders it.

a folder of overlays/ -> kubectl kustomize -> objects
a folder of components/ -> a kustomization of the base and it -> kubectl kustomize -> objects
"""

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.models import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = tuple(sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml")))
COMPONENTS = tuple(sorted(path.parent.name for path in KUBERNETES.glob("components/*/kustomization.yaml")))

Object = dict[str, Any]
# Field names and positions, from the top of an object.
Where = tuple[str | int, ...]


def overlay(name: str) -> list[Object]:
    """The objects of an overlay."""
    return _objects(str(KUBERNETES / "overlays" / name))


def jobs() -> list[Object]:
    """The objects of jobs/."""
    return _objects(str(KUBERNETES / "jobs"))


@functools.cache
def component(*names: str) -> list[Object]:
    """The objects of the base with components."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            # As every overlay says: a generated ConfigMap is found by what is in its namespace alone.
            "namespace": "torchserve",
            "resources": [os.path.relpath(KUBERNETES / "base", folder.resolve())],
            "components": [os.path.relpath(KUBERNETES / "components" / name, folder.resolve()) for name in names],
        }
        (folder / "kustomization.yaml").write_text(json.dumps(document))
        return _objects.__wrapped__(str(folder))


def every() -> Iterator[tuple[str, Object]]:
    """Each object that is rendered anywhere, once, with where it was first; `Kind/name of folder`."""
    seen = set()
    folders = [(f"overlays/{name}", overlay(name)) for name in OVERLAYS]
    folders += [(f"components/{name}", component(name)) for name in COMPONENTS]
    folders.append(("jobs", jobs()))
    folders += [(path.relative_to(KUBERNETES).as_posix(), list(read(path))) for path in plain()]
    for where, objects in folders:
        for each in objects:
            if (text := json.dumps(each, sort_keys=True)) not in seen:
                seen.add(text)
                yield f"{title(each)} of {where}", each


def plain() -> Sequence[Path]:
    """Files that are applied, or copied, as they stand."""
    return [KUBERNETES / "jobs" / "claims.yaml", *sorted(KUBERNETES.glob("components/*/*.example.yaml"))]


def read(path: Path) -> Iterator[Object]:
    """The objects of a file."""
    yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def title(each: Object) -> str:
    """Kind and name."""
    return f"{each['kind']}/{each['metadata']['name']}"


def one(objects: Iterable[Object], kind: str, name: str) -> Object:
    """The object of a kind and a name; a generated one by its name without the hash."""
    found = [
        each
        for each in objects
        if each["kind"] == kind and (each["metadata"]["name"] == name or _unhashed(each) == name)
    ]
    assert len(found) == 1, f"{len(found)} {kind}/{name}"
    return found[0]


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    """The objects of some kinds."""
    return [each for each in objects if each["kind"] in kinds]


def mappings(value: Any, where: Where = ()) -> Iterator[Where]:
    """Where an object has mappings, itself among them."""
    if isinstance(value, Mapping):
        yield where
        for key, inner in value.items():
            yield from mappings(inner, (*where, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from mappings(inner, (*where, number))


def _unhashed(each: Object) -> str:
    return str(each["metadata"]["name"]).rpartition("-")[0]


@functools.cache
def _objects(folder: str) -> list[Object]:
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))
