from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.models import Engine
from tests import tiny_models
from tests.handlers.tasks.translating import Translators


@pytest.fixture(scope="session")
def tiny_archive(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a tiny checkpoint's archive contents, by kind, task, engine and configuration: made once, not changed.

    For OpenVINO it holds both engines' files, since an oracle reads the weights.
    """
    made: dict[str, Path] = {}

    def make(kind: str, task: str, engine: Engine = "openvino", **config: Any) -> Path:
        key = f"{kind} {task} {engine} {config}"
        if key not in made:
            staged: Engine = "torch" if engine == "torch" else "auto"
            made[key] = tiny_models.staged(tmp_path_factory.mktemp(kind), kind, task, engine=staged, **config)
        return made[key]

    return make


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Translators:
    return Translators(tmp_path_factory.mktemp)
