"""Command lines: the client's parser, failures of one line, and lines that report a step."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from torchserve_client.arguments import Parser as CommandParser
from torchserve_client.arguments import number

__all__ = ["CommandParser", "number", "run_command", "say"]


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


def say(line: str, file: TextIO | None = None) -> None:
    """Print a line at once; a full disk, or a pipe that nothing reads, must not prevent the next step."""
    with suppress(OSError):
        print(line, file=file or sys.stdout, flush=True)
