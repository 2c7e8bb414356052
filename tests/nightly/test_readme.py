"""The shell blocks of the README and the pages that follow it, in a fresh copy with an environment that they build."""

import socket
from pathlib import Path

import pytest

from tests.e2e.checkout import PRINTED, Reader, checkout
from tests.pages import RUN_PAGES, blocks


def has_network() -> bool:
    try:
        socket.create_connection(("download.pytorch.org", 443), timeout=5).close()
    except OSError:
        return False
    return True


# An environment and four servers: some five minutes, and this on a slow machine.
@pytest.mark.timeout(1800)
def test_readme_shell_blocks_run_as_written(tmp_path: Path) -> None:
    commands = [block for page in RUN_PAGES for block in blocks(page)]
    assert len(commands) == len(PRINTED)
    with checkout(tmp_path, has_environment=False) as copy:
        reader = Reader(copy, has_weights=has_network())
        for block in commands:
            reader.read(block)
