"""Command lines: the client's parser, and failures of one line."""

import sys
from collections.abc import Callable

from torchserve_client.arguments import Parser as CommandParser
from torchserve_client.arguments import number

__all__ = ["CommandParser", "number", "run_command"]


def run_command(name: str, command: Callable[[], object], *failures: type[Exception]) -> int:
    """Run a command; on an expected failure print one line that starts with `name`, and return 1."""
    try:
        command()
    except failures as error:
        words = str(error)
        if isinstance(error, OSError) and error.filename:
            words = f"{error.filename}: {error.strerror}"
        print(f"{name}: {' / '.join(words.splitlines())}", file=sys.stderr)
        return 1
    return 0
