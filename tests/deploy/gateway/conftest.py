"""A control process for each test, with or without management."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.gateway.settings import Key
from tests.deploy.gateway.scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path) as made:
        yield made


@pytest.fixture
def managed(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path, management=True, keys=(Key(client="operator", key="k" * 16),)) as made:
        yield made
