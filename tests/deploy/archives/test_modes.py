"""Which mode an archive is built for, by what its file and its task say."""

from typing import Any

import pytest
import yaml

from deploy.archives.archive import complete_mode, find_classic_cause
from handlers.config import HandlerConfig, parse
from handlers.continuous import mode
from handlers.errors import InvalidConfig
from tests.deploy.archives.conftest import ArchiveSh

pytestmark = pytest.mark.builds

WINDOW = {"batchSize": 64, "maxBatchDelay": 1}
WORKER = {"minWorkers": 1, "maxWorkers": 1}
ADAPTIVE = {"handler": {"scheduling": {"mode": "adaptive"}}}


def mode_of(config: dict[str, Any]) -> str:
    scheduling = {"scheduling": (config.get("handler") or {}).get("scheduling", {})}
    return mode.resolve_mode(parse(HandlerConfig, scheduling), config).scheduling.mode


@pytest.mark.parametrize(
    ("config", "more"),
    [
        ({}, {"continuousBatching": True, **WINDOW, **WORKER}),
        (ADAPTIVE, {"continuousBatching": True, **WINDOW, **WORKER}),
        ({"batchSize": 8, "maxBatchDelay": 50}, {"continuousBatching": True, **WORKER}),
        ({"maxWorkers": 1}, {"continuousBatching": True, **WINDOW, "minWorkers": 1}),
    ],
)
def test_config_that_leaves_it_open_is_adaptive_and_keeps_what_it_says(
    config: dict[str, Any], more: dict[str, Any]
) -> None:
    assert complete_mode("m", config) == {**config, **more}
    assert mode_of(complete_mode("m", config)) == "adaptive"
    assert find_classic_cause(config) is None


@pytest.mark.parametrize(
    ("config", "more"),
    [
        ({}, {"batchSize": 32, "maxBatchDelay": 1}),
        ({"batchSize": 1, "maxWorkers": 4}, {"maxBatchDelay": 1}),
        ({"maxBatchDelay": 50}, {"batchSize": 32}),
        ({"asyncCommunication": True}, {}),
    ],
)
def test_classic_config_without_batch_parameters_gets_them_and_keeps_what_it_says(
    config: dict[str, Any], more: dict[str, Any]
) -> None:
    assert complete_mode("m", config, "classic") == {**config, **more}


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (None, "own: classic mode, batchSize 32, maxBatchDelay 1 by default; model-config.yaml sets others"),
        ("", "own: classic mode, batchSize 32, maxBatchDelay 1 by default; model-config.yaml sets others"),
        ("batchSize: 4\n", "own: classic mode, maxBatchDelay 1 by default; model-config.yaml sets others"),
        ("batch_size: 4\n", "own: model-config.yaml: batch_size: unknown name (did you mean batchSize?)"),
        ("handler: tensors\n", "own: model-config.yaml: handler: expected a mapping of settings, received str"),
        ("handler: [threads]\n", "own: model-config.yaml: handler: expected a mapping of settings, received list"),
        ("continuousBatching: true\n", "own: model-config.yaml: continuousBatching: the build writes it; remove it"),
        ("- 4\n", "own: model-config.yaml: expected a mapping of names to values"),
        ("a: [\n", "own: model-config.yaml: while parsing"),
    ],
)
def test_model_config_may_be_missing_or_empty_and_its_names_are_checked(
    text: str | None, outcome: str, archive_sh: ArchiveSh
) -> None:
    folder = archive_sh.write_list("own", "tensors", "infer.py")
    (folder / "infer.py").write_text("def infer(x):\n    return {'y': x}\n")
    if text is not None:
        (folder / "model-config.yaml").write_text(text)
    if "by default" in outcome:
        assert archive_sh("own")[-1].endswith(outcome)
    else:
        assert archive_sh.refused("own").startswith(outcome)


def test_model_config_under_another_name_is_refused(archive_sh: ArchiveSh) -> None:
    folder = archive_sh.write_list("own", "image_classification", {"torchvision": "IMAGENET1K_V1"})
    (folder / "model-config.yml").write_text("handler: {arch: resnet18}\n")
    assert archive_sh.refused("own") == "own: model-config.yml is not read: rename it to model-config.yaml"


def test_build_says_why_an_archive_is_classic_and_refuses_an_adaptive_one_that_cannot_be(
    archive_sh: ArchiveSh,
) -> None:
    folder = archive_sh.write_list("own", "tensors", "infer.py")
    (folder / "infer.py").write_text("def infer(x):\n    return {'y': x}\n")
    archived_config = archive_sh.store / "own" / "model-config.yaml"

    def write(**config: Any) -> None:
        (folder / "model-config.yaml").write_text(yaml.safe_dump(config))

    write(**ADAPTIVE)
    assert not [line for line in archive_sh("own") if "classic" in line]
    config = yaml.safe_load(archived_config.read_text())
    assert (config["continuousBatching"], config["maxWorkers"], config["batchSize"]) == (True, 1, 64)
    write(maxWorkers=4, batchSize=8)
    (said,) = [line for line in archive_sh("own") if "since" in line]
    assert said.endswith("own: classic mode, since model-config.yaml has maxWorkers: 4")
    config = yaml.safe_load(archived_config.read_text())
    assert "continuousBatching" not in config
    assert config["maxWorkers"] == 4
    write(maxWorkers=4, **ADAPTIVE)
    assert "own: handler: scheduling: mode: adaptive: maxWorkers must be 1" in archive_sh.refused("own")
    with pytest.raises(InvalidConfig, match=r"^m: model-config.yaml: continuousBatching: the build writes it"):
        complete_mode("m", {"continuousBatching": False, **ADAPTIVE})
