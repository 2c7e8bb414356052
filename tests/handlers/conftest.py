import logging
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from deploy import language_id, text, tokenization, vision
from deploy.models import model
from deploy.sources import source

STAGES = {
    "mobilenet-v2": vision.stage,
    "sentence-embedding": text.stage,
    "language-id": language_id.stage,
    "tokenizer": tokenization.stage,
}


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """`initialize` sets levels for a worker's lifetime; a test's is shorter."""
    levels = {name: logging.getLogger(name).level for name in (None, "ts.metrics")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture(scope="session")
def staged_example(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What the archive of an example holds, for both engines: made once a run, for tests that change nothing in it."""

    @cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        STAGES[name](model(name), source(model(name), None), "auto", folder)
        return folder

    return make
