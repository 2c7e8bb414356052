"""Command lines: help with examples, and failures of one line."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any


class CommandParser(argparse.ArgumentParser):
    """A parser without abbreviations, whose help ends with examples."""

    def __init__(self, *, examples: Sequence[str] = (), **options: Any) -> None:
        epilog = "\n  ".join(["examples:", *examples]) if examples else None
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(epilog=epilog, formatter_class=formatter, allow_abbrev=False, **options)


def run_command(name: str, command: Callable[[], object], *failures: type[Exception]) -> int:
    """Run a command; on an expected failure print one line that starts with `name`, and return 1."""
    try:
        command()
    except failures as error:
        print(f"{name}: {' / '.join(str(error).splitlines())}", file=sys.stderr)
        return 1
    return 0
