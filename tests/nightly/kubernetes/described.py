"""What the tests of deploy/kubernetes ask of its objects: pods, containers, sizes, and what they run with."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deploy.memory import MIB, Served
from deploy.properties import Settings
from tests.nightly.kubernetes.flows import Labels, namespace
from tests.nightly.kubernetes.rendered import (
    COMPONENTS,
    OVERLAYS,
    Object,
    component,
    jobs,
    of_kind,
    one,
    overlay,
    title,
)

RUN_ON = tuple(name for name in OVERLAYS if name != "kserve")
# Bytes beside the heap and direct memory: Java's classes, threads and code; a node's Envoy and Python.
JAVA_REST, BESIDE = 512 * MIB, 512 * MIB
# Bytes of a worker: 1,038 MB measured of ResNet-152 (docs/results.md), the largest of the examples; its streams' second
# copy of the weights in adaptive mode.
WORKER, SECOND_COPY = 1100 * MIB, 250 * MIB
# Bytes beside Envoy's heap in an edge: the control process.
CONTROL = 300 * MIB
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

EDGE = {"app.kubernetes.io/name": "torchserve", "app.kubernetes.io/component": "edge"}
NODE = {"app.kubernetes.io/name": "torchserve", "app.kubernetes.io/component": "node"}
HERE = namespace("torchserve")


def folders() -> Iterator[tuple[str, list[Object]]]:
    """All that can be applied to one namespace; jobs come on top of an overlay."""
    for name in RUN_ON:
        yield f"overlays/{name}", overlay(name)
    for name in COMPONENTS:
        yield f"components/{name}", component(name)
    yield "jobs", [*overlay("cpu"), *jobs()]


def pods() -> Iterator[tuple[str, Labels, dict[str, Any]]]:
    """Every pod: where it is from, its labels and its spec."""
    for where, objects in folders():
        for each in of_kind(objects, "Deployment", "Job"):
            template = each["spec"]["template"]
            yield f"{title(each)} of {where}", template["metadata"]["labels"], template["spec"]
    for each in of_kind(overlay("kserve"), "ServingRuntime"):
        yield f"{title(each)} of overlays/kserve", each["metadata"]["labels"], each["spec"]


def deployment(objects: Sequence[Object], name: str) -> dict[str, Any]:
    spec: dict[str, Any] = one(objects, "Deployment", name)["spec"]
    return spec


def container(objects: Sequence[Object], name: str) -> dict[str, Any]:
    [found] = deployment(objects, f"torchserve-{name}")["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def size(text: str) -> int:
    """Bytes of a quantity."""
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", text)
    assert match, text
    return int(match[1]) * UNITS[match[2]]


def configuration(objects: Sequence[Object], folder: Path) -> Settings:
    """The settings that a node of an overlay reads."""
    path = folder / "config.properties"
    path.write_text(one(objects, "ConfigMap", "torchserve-node")["data"]["config.properties"])
    return Settings.read(path)


def served(settings: Settings) -> list[Served]:
    return [
        Served(settings.job_queue_size, int(entry["batchSize"]) * int(entry["maxWorkers"]))
        for versions in settings.models.values()
        for entry in versions.values()
    ]


# -- who selects whom ----------------------------------------------------------------------------------------------
