"""The shell blocks of the README and the pages that follow it, in a fresh copy with an environment that they build."""

from pathlib import Path

import pytest

from tests.e2e.checkout import Reader, checkout
from tests.pages import RUN_PAGES, blocks


# An environment and four servers: some five minutes, and this on a slow machine.
@pytest.mark.timeout(1800)
def test_readme_shell_blocks_run_as_written(tmp_path: Path) -> None:
    commands = [block for page in RUN_PAGES for block in blocks(page)]
    with checkout(tmp_path, has_environment=False) as copy:
        reader = Reader(copy)
        for block in commands:
            reader.read(block)
