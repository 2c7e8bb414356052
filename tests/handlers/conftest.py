from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_models
from tests.exports import staged


@pytest.fixture(scope="session")
def staged_example(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the contents of an example's archive, for both engines: made once, for tests that change nothing in it."""

    @cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        staged(name, folder)
        return folder

    return make


@pytest.fixture(scope="session")
def tiny_archive(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a tiny checkpoint's archive contents, by kind, task, engine and configuration: made once, not changed.

    For OpenVINO it holds both engines' files, since an oracle reads the weights.
    """
    made: dict[str, Path] = {}

    def make(kind: str, task: str, engine: str = "openvino", **config: Any) -> Path:
        key = f"{kind} {task} {engine} {config}"
        if key not in made:
            staged = "torch" if engine == "torch" else "auto"
            made[key] = tiny_models.staged(tmp_path_factory.mktemp(kind), kind, task, engine=staged, **config)
        return made[key]

    return make
