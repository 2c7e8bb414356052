from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deploy.models import Engine
from tests import exports, tiny_models
from tests.handlers.serving import Made, Temp
from tests.handlers.tasks.translating import Translators


@pytest.fixture(scope="session")
def tiny_archive(tmp_path_factory: Temp) -> Made:
    """Return a tiny checkpoint's archive contents: made once, not changed."""
    made: dict[str, Path] = {}

    def make(kind: str, task: str, engine: Engine = "openvino", **config: Any) -> Path:
        key = f"{kind} {task} {engine} {config}"
        if key not in made:
            # Of both engines for OpenVINO, since an oracle reads the weights.
            staged: Engine = "torch" if engine == "torch" else "auto"
            made[key] = tiny_models.staged(tmp_path_factory.mktemp(kind), kind, task, engine=staged, **config)
        return made[key]

    return make


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


@pytest.fixture(scope="session")
def start(tmp_path_factory: Temp) -> Translators:
    return Translators(tmp_path_factory.mktemp)
