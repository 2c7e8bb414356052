"""Which mode an archive is built for, by what its file and its task say."""

from typing import Any

import pytest
import yaml

from deploy.archives.archive import complete_mode, find_classic_cause
from handlers.config import HandlerConfig, parse
from handlers.continuous import mode
from handlers.errors import InvalidConfig
from tests.deploy.archives.conftest import ArchiveSh
from tests.tables import table

pytestmark = pytest.mark.builds

WINDOW = {"batchSize": 64, "maxBatchDelay": 1}
WORKER = {"minWorkers": 1, "maxWorkers": 1}
OTHERS = "by default; model-config.yaml sets others"
ADAPTIVE = {"handler": {"scheduling": {"mode": "adaptive"}}}


@table(
    ({}, {"continuousBatching": True, **WINDOW, **WORKER}, {"batchSize": 32, "maxBatchDelay": 1}),
    (ADAPTIVE, {"continuousBatching": True, **WINDOW, **WORKER}, None),
    ({"batchSize": 8, "maxBatchDelay": 50}, {"continuousBatching": True, **WORKER}, {}),
    ({"maxWorkers": 1}, {"continuousBatching": True, **WINDOW, "minWorkers": 1}, {"batchSize": 32, "maxBatchDelay": 1}),
    ({"batchSize": 1, "maxWorkers": 4}, None, {"maxBatchDelay": 1}),
    ({"maxBatchDelay": 50}, None, {"batchSize": 32}),
    ({"asyncCommunication": True}, None, {}),
)
def test_config_is_adaptive_unless_it_is_said_and_keeps_what_it_says(config: Any, more: Any, classic: Any) -> None:
    if more is not None:
        whole = complete_mode("m", config)
        assert whole == {**config, **more}
        scheduling = {"scheduling": (whole.get("handler") or {}).get("scheduling", {})}
        assert mode.resolve_mode(parse(HandlerConfig, scheduling), whole).scheduling.mode == "adaptive"
        assert find_classic_cause(config) is None
    if classic is not None:
        assert complete_mode("m", config, "classic") == {**config, **classic}


@table(
    *((text, f"own: classic mode, batchSize 32, maxBatchDelay 1 {OTHERS}") for text in (None, "")),
    ("batchSize: 4\n", f"own: classic mode, maxBatchDelay 1 {OTHERS}"),
    ("batch_size: 4\n", "own: model-config.yaml: batch_size: unknown name (did you mean batchSize?)"),
    ("handler: tensors\n", "own: model-config.yaml: handler: expected a mapping of settings, received str"),
    ("handler: [threads]\n", "own: model-config.yaml: handler: expected a mapping of settings, received list"),
    ("continuousBatching: true\n", "own: model-config.yaml: continuousBatching: the build writes it; remove it"),
    ("- 4\n", "own: model-config.yaml: expected a mapping of names to values"),
    ("a: [\n", "own: model-config.yaml: while parsing"),
    ("batchSize: 4\n", "own: model-config.yml is not read: rename it to model-config.yaml"),
)
def test_model_config_may_be_missing_and_is_checked(text: str | None, outcome: str, archive_sh: ArchiveSh) -> None:
    folder = archive_sh.write_list("own", "tensors", "infer.py")
    (folder / "infer.py").write_text("def infer(x):\n    return {'y': x}\n")
    if text is not None:
        (folder / f"model-config.{'yml' if '.yml' in outcome else 'yaml'}").write_text(text)
    if "by default" in outcome:
        assert archive_sh("own")[-1].endswith(outcome)
    else:
        assert archive_sh.refused("own").startswith(outcome)


def test_build_says_why_an_archive_is_classic_and_refuses_an_adaptive_one_that_cannot_be(archive_sh: ArchiveSh) -> None:
    folder = archive_sh.write_list("own", "tensors", "infer.py")
    (folder / "infer.py").write_text("def infer(x):\n    return {'y': x}\n")

    def write(**config: Any) -> None:
        (folder / "model-config.yaml").write_text(yaml.safe_dump(config))

    write(**ADAPTIVE)
    assert not [line for line in archive_sh("own") if "classic" in line]
    config = archive_sh.config("own")
    assert (config["continuousBatching"], config["maxWorkers"], config["batchSize"]) == (True, 1, 64)
    write(maxWorkers=4, batchSize=8)
    (said,) = [line for line in archive_sh("own") if "since" in line]
    assert said.endswith("own: classic mode, since model-config.yaml has maxWorkers: 4")
    config = archive_sh.config("own")
    assert "continuousBatching" not in config and config["maxWorkers"] == 4
    write(maxWorkers=4, **ADAPTIVE)
    assert "own: handler: scheduling: mode: adaptive: maxWorkers must be 1" in archive_sh.refused("own")
    with pytest.raises(InvalidConfig, match=r"^m: model-config.yaml: continuousBatching: the build writes it"):
        complete_mode("m", {"continuousBatching": False, **ADAPTIVE})
