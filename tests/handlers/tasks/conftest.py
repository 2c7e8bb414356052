import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deploy.models import Engine
from tests import exports, tiny_models
from tests.handlers.serving import Made, Temp
from tests.handlers.tasks.translating import Translators


@pytest.fixture(scope="session")
def archived(tmp_path_factory: Temp) -> Made:
    """Return a task's archive contents, of random weights or those that a function writes: made once, not changed."""

    @cache
    def write(function: Any, *arguments: Any) -> Path:
        written: Path = function(tmp_path_factory.mktemp("weights"), *arguments)
        return written

    @cache
    def make(task: str, engine: Engine, *weights: Any, **settings: Any) -> Path:
        origin = write(*weights) if weights else "random"
        return exports.archived(task, origin, tmp_path_factory.mktemp("archive"), settings, engine=engine)

    return make


def tiny(folder: Path, kind: str, task: str, config: str) -> Path:
    return tiny_models.checkpoint(folder, kind, task, **json.loads(config))


@pytest.fixture(scope="session")
def tiny_archive(archived: Made) -> Made:
    """Return a tiny checkpoint's archive contents; of both engines for OpenVINO, since an oracle reads the weights."""
    return lambda kind, task, engine="openvino", **config: archived(
        task, "torch" if engine == "torch" else "auto", tiny, kind, task, json.dumps(config)
    )


@pytest.fixture(scope="session")
def start(tmp_path_factory: Temp) -> Translators:
    return Translators(tmp_path_factory.mktemp)
