from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.archive import Recipe, main
from deploy.models import models
from deploy.modes import archived, packed, why_classic
from handlers.config import HandlerConfig, parse
from handlers.errors import InvalidConfig
from handlers.scheduling.policy import settled

WINDOW = {"batchSize": 64, "maxBatchDelay": 1}
WORKER = {"minWorkers": 1, "maxWorkers": 1}


def mode_of(config: dict[str, Any]) -> str:
    scheduling = {"scheduling": (config.get("handler") or {}).get("scheduling", {})}
    return settled(parse(HandlerConfig, scheduling), config).scheduling.mode


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ({}, {"continuousBatching": True, **WINDOW, **WORKER}),
        ({"handler": None}, {"continuousBatching": True, **WINDOW, **WORKER}),
        ({"handler": {"scheduling": {"mode": "auto"}}}, {"continuousBatching": True, **WINDOW, **WORKER}),
        ({"handler": {"scheduling": {"mode": "adaptive"}}}, {"continuousBatching": True, **WINDOW, **WORKER}),
        ({"batchSize": 8, "maxBatchDelay": 50}, {"continuousBatching": True, **WORKER}),
        ({"minWorkers": 1, "responseTimeout": 60}, {"continuousBatching": True, **WINDOW, "maxWorkers": 1}),
        ({"continuousBatching": True, "maxWorkers": 1}, {**WINDOW, "minWorkers": 1}),
    ],
)
def test_config_that_leaves_it_open_is_packed_as_adaptive_and_keeps_what_it_says(
    said: dict[str, Any], more: dict[str, Any]
) -> None:
    config = packed("m", said)
    assert config == {**said, **more}
    assert mode_of(config) == "adaptive"
    assert why_classic(said) is None


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"maxWorkers": 4}, "maxWorkers: 4"),
        ({"minWorkers": 2, "maxWorkers": 2}, "minWorkers: 2"),
        ({"continuousBatching": False}, "continuousBatching: false"),
        ({"asyncCommunication": True}, "asyncCommunication: true"),
        ({"handler": {"scheduling": {"mode": "classic"}}}, None),
        ({"handler": {"scheduling": {"mode": "classic"}}, "maxWorkers": 4}, None),
    ],
)
def test_config_that_asks_for_what_one_worker_cannot_give_stays_classic_as_it_is(
    said: dict[str, Any], reason: str | None
) -> None:
    assert packed("m", said) == said
    assert mode_of(packed("m", said)) == "classic"
    assert why_classic(said) == reason


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"maxWorkers": 4}, "maxWorkers must be 1"),
        ({"continuousBatching": False}, "continuousBatching: true is needed"),
    ],
)
def test_config_that_says_adaptive_and_what_cannot_be_so_is_refused_by_the_builder(
    settings: dict[str, Any], word: str
) -> None:
    with pytest.raises(InvalidConfig, match=f"m: .*{word}"):
        packed("m", {**settings, "handler": {"scheduling": {"mode": "adaptive"}}})


@pytest.mark.parametrize("handler", ["text", {"scheduling": "adaptive"}, ["a"]])
def test_config_of_no_mapping_is_left_to_whoever_parses_it(handler: Any) -> None:
    assert packed("m", {"handler": handler})["handler"] == handler


def test_archive_is_adaptive_unless_its_file_asks_for_several_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "models.yaml"
    entry = {"handler": "tensors", "version": "1", "weights": "infer.py"}
    listed.write_text(yaml.safe_dump({"plain": entry, "many": entry}))
    for name, settings in (
        ("plain", {"continuousBatching": True}),
        ("many", {"maxWorkers": 4, "minWorkers": 1, "batchSize": 8}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "infer.py").write_text("def infer(x):\n    return {'y': x}\n")
        tensors = {"inputs": {"x": {"datatype": "FP32", "shape": [-1, 1]}}}
        (folder / "model-config.yaml").write_text(yaml.safe_dump({**settings, "handler": tensors}))
    store = tmp_path / "store"
    arguments = ["--models", str(listed), "--archive-format", "no-archive", "--export-path", str(store)]
    assert main(["plain", "many", *arguments]) == 0
    plain, many = (yaml.safe_load((store / name / "model-config.yaml").read_text()) for name in ("plain", "many"))
    assert (plain["continuousBatching"], plain["maxWorkers"], plain["batchSize"]) == (True, 1, 64)
    assert "continuousBatching" not in many
    assert many["maxWorkers"] == 4
    said = [line for line in capsys.readouterr().out.splitlines() if "classic" in line]
    assert len(said) == 1
    assert said[0].endswith("many: classic mode, since model-config.yaml has maxWorkers: 4")
    assert Recipe(models(listed)["plain"], archive_format="no-archive", export_path=store).find() is not None


def test_task_whose_items_cost_next_to_nothing_is_classic_unless_its_file_says_otherwise() -> None:
    examples = models()
    assert {name for name in examples if mode_of(archived(examples[name])) == "classic"} == {
        *("mobilenet-v2", "language-id", "tokenizer", "mnist", "batch2", "tabular")
    }
    assert mode_of(packed("m", {"handler": {"scheduling": {"mode": "adaptive"}}}, "classic")) == "adaptive"
    assert mode_of(packed("m", {"continuousBatching": True}, "classic")) == "adaptive"
