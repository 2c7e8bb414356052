"""The models of a soak: both modes of each example."""

import pytest

from deploy.models import model
from deploy.modes import packed
from handlers.config import parse
from handlers.text.config import LanguageIdConfig
from load.soak.candidates import TASKS
from load.soak.models import CLASSIC, MIX, configuration, subjects


@pytest.mark.parametrize(("mode", "endings"), [("classic", {"classic"}), ("both", {"classic", "adaptive"})])
def test_subjects_are_every_example_in_every_mode(mode: str, endings: set[str]) -> None:
    found = subjects(mode)
    assert {each.name for each in found} == {f"{example}-{ending}" for example in MIX for ending in endings}
    assert {each.task for each in found} <= TASKS.keys()


def test_configuration_of_adaptive_mode_is_the_examples_with_a_schedule() -> None:
    example = model("language-id").config()
    adaptive = configuration(example, "adaptive")
    assert (adaptive["continuousBatching"], adaptive["maxWorkers"], adaptive["batchSize"]) == (True, 1, 64)
    assert parse(LanguageIdConfig, adaptive["handler"]).scheduling.mode == "adaptive"
    classic = configuration(example, CLASSIC)
    assert classic["handler"] == {**example["handler"], "scheduling": {"mode": "classic"}}
    assert "continuousBatching" not in packed("m", classic)
