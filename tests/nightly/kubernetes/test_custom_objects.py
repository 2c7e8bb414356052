"""Objects of KEDA, Prometheus-operator and KServe are held against the definitions that their makers publish."""

import copy
from typing import Any

import pytest

from tests.nightly.kubernetes import kserve
from tests.nightly.kubernetes.core import is_core
from tests.nightly.kubernetes.rendered import Object, Where, every, mappings
from tests.nightly.kubernetes.test_core_objects import FREE, at
from tests.nightly.kubernetes.typed import is_typed, type_problems, value_problems

pytestmark = pytest.mark.kubectl

# KEDA's triggers and autoscalers take whatever a scaler of theirs may have.
OPEN = FREE | {"metadata"}


def typed() -> list[tuple[str, Object]]:
    return [(name, each) for name, each in every() if is_typed(each)]


def kserves() -> list[tuple[str, Object]]:
    return [(name, each) for name, each in every() if kserve.is_kserve(each)]


def misspelled(each: Object) -> list[tuple[Where, Object]]:
    """An object with a field that is none, at each place where fields are."""
    found = []
    for where in mappings(each):
        if not FREE & set(where) and not ("triggers" in where and "metadata" in where):
            changed: Any = copy.deepcopy(each)
            at(changed, where)["noSuchField"] = 1
            found.append((where, changed))
    return found


def test_every_custom_object_has_a_definition() -> None:
    unknown = [n for n, each in every() if not is_core(each) and not is_typed(each) and not kserve.is_kserve(each)]
    assert not unknown
    assert {each["kind"] for _, each in typed()} >= {"PodMonitor"}
    assert {each["kind"] for _, each in kserves()} == {"ServingRuntime", "InferenceService"}


def test_objects_of_operators_have_the_types_that_are_published() -> None:
    objects = typed()
    wrong = {objects[number][0]: words for number, words in type_problems([each for _, each in objects]).items()}
    assert not wrong
    said = value_problems([each for _, each in objects])
    assert not {name: words for (name, _), words in zip(objects, said, strict=True) if words}


def test_a_field_that_is_none_is_found_wherever_it_stands_in_objects_of_operators() -> None:
    changed = [(name, where, new) for name, each in typed() for where, new in misspelled(each)]
    found = type_problems([new for _, _, new in changed])
    assert not [f"{name}: {where}" for number, (name, where, _) in enumerate(changed) if number not in found]
    assert len(changed) > 10


def test_a_value_of_a_wrong_form_is_found_in_objects_of_operators() -> None:
    monitor: Any = copy.deepcopy(next(each for _, each in typed() if each["kind"] == "PodMonitor"))
    monitor["spec"]["podMetricsEndpoints"][0]["interval"] = "fifteen"
    assert type_problems([monitor]) == {}
    [words] = value_problems([monitor])
    assert "interval" in words


def test_kserves_objects_have_the_fields_that_its_models_have() -> None:
    assert not [f"{name}: {problem}" for name, each in kserves() for problem in kserve.problems(each)]


def test_a_field_that_is_none_is_found_wherever_it_stands_in_kserves_objects() -> None:
    unnoticed = []
    for name, each in kserves()[:3] + [pair for pair in kserves() if pair[1]["kind"] == "ServingRuntime"]:
        for where, changed in misspelled(each):
            if not any("noSuchField" in problem for problem in kserve.problems(changed)):
                unnoticed.append(f"{name}: {where}")
    assert not unnoticed


@pytest.mark.parametrize(
    ("kind", "where", "value"),
    [
        ("InferenceService", ("spec", "predictor", "model", "storageUri"), 7),
        ("InferenceService", ("spec", "predictor", "minReplicas"), "one"),
        ("InferenceService", ("spec", "predictor", "model", "modelFormat"), "torch-model-archive"),
        ("ServingRuntime", ("spec", "multiModel"), "false"),
        ("ServingRuntime", ("spec", "containers", 0, "args"), "node"),
        ("ServingRuntime", ("spec", "supportedModelFormats", 0, "autoSelect"), "no"),
    ],
)
def test_a_value_of_a_wrong_type_is_found_in_kserves_objects(kind: str, where: Where, value: object) -> None:
    changed: Any = copy.deepcopy(next(each for _, each in kserves() if each["kind"] == kind))
    at(changed, where[:-1])[where[-1]] = value
    assert kserve.problems(changed)
