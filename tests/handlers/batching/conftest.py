from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.handlers.batching.gated import GatedHandler, Start, start_handler


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start handlers whose gates open at the end of a test, also of one that fails."""
    handlers: list[GatedHandler] = []

    def make(kind: type[GatedHandler] = GatedHandler, *settings: dict[str, Any], **more: Any) -> GatedHandler:
        handlers.append(start_handler(kind, tmp_path, *settings, **more))
        return handlers[-1]

    yield make
    for handler in handlers:
        handler.gate.set()
        handler.slow_gate.set()
