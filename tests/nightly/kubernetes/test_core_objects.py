"""Every core object that deploy/kubernetes renders is held against Kubernetes' own schemas, unknown fields refused."""

import copy
from typing import Any

import kubernetes_validate
import pytest

from tests.nightly.kubernetes.core import NEWEST, OLDEST, VERSIONS, is_core, problems
from tests.nightly.kubernetes.rendered import (
    COMPONENTS,
    OVERLAYS,
    Object,
    Where,
    component,
    every,
    mappings,
    of_kind,
    overlay,
    title,
)

pytestmark = pytest.mark.kubectl

# Image volumes came with 1.31.
NEEDS_NEWER = {"models-image": "1.33"}
# Mappings whose keys are whoever's who writes them.
FREE = {
    "labels", "annotations", "matchLabels", "nodeSelector", "data", "stringData", "requests", "limits",
}  # fmt: skip


def core_objects() -> list[tuple[str, Object]]:
    return [(name, each) for name, each in every() if is_core(each)]


def oldest(name: str) -> str:
    """The oldest release that has what an object needs."""
    return next((version for folder, version in NEEDS_NEWER.items() if name.endswith(folder)), OLDEST)


def fields(each: Object) -> list[Where]:
    """Where an object has mappings of fields."""
    return [where for where in mappings(each) if not FREE & set(where)]


def at(each: Any, where: Where) -> Any:
    for step in where:
        each = each[step]
    return each


def test_every_core_object_is_valid_in_every_release() -> None:
    wrong = [
        f"{name}, Kubernetes {version}: {problem}"
        for name, each in core_objects()
        for version in VERSIONS
        if tuple(map(int, version.split("."))) >= tuple(map(int, oldest(name).split(".")))
        for problem in problems(each, version)
    ]
    assert not wrong


def test_an_image_volume_is_no_field_of_the_oldest_release() -> None:
    [node] = [each for each in of_kind(component("models-image"), "Deployment") if "-node" in title(each)]
    assert any("image" in problem for problem in problems(node, OLDEST))
    assert not problems(node, NEEDS_NEWER["models-image"])


@pytest.mark.parametrize("field", ["maxUnavailible", "spce"])
def test_a_misspelled_field_is_found_by_kubernetes_validate_itself(field: str) -> None:
    for kind in ("Deployment", "PodDisruptionBudget", "NetworkPolicy"):
        each = copy.deepcopy(of_kind(overlay("cpu"), kind)[0])
        kubernetes_validate.validate(each, NEWEST, strict=True)
        each["spec"][field] = 1
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(each, NEWEST, strict=True)


def test_a_field_that_is_none_is_found_wherever_it_stands_in_any_object() -> None:
    objects = core_objects()
    unnoticed = []
    count = 0
    for name, each in objects:
        changed = copy.deepcopy(each)
        for where in fields(changed):
            count += 1
            at(changed, where)["noSuchField"] = 1
            if not any("noSuchField" in problem for problem in problems(changed, NEWEST)):
                unnoticed.append(f"{name}: {'.'.join(map(str, where))}")
            del at(changed, where)["noSuchField"]
    assert not unnoticed
    assert count > 10 * len(objects)


def test_every_kind_of_a_folder_is_rendered() -> None:
    assert {"cpu", "gpu", "adaptive"} <= set(OVERLAYS)
    assert {"client-keys", "models-baked", "models-fetch", "models-image", "monitoring"} <= set(COMPONENTS)
    kinds = {each["kind"] for each in overlay("cpu")}
    assert kinds == {
        "ConfigMap", "Deployment", "Namespace", "NetworkPolicy", "PersistentVolumeClaim", "PodDisruptionBudget",
        "Service", "ServiceAccount",
    }  # fmt: skip
