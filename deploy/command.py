"""Command lines: help with examples, errors that name an option's new word, and failures of one line."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class CommandParser(argparse.ArgumentParser):
    """A parser without abbreviations, whose help ends with examples."""

    def __init__(self, *, examples: Sequence[str] = (), renamed: Mapping[str, str] | None = None, **options: Any):
        """`renamed` maps options that no longer exist to their new names."""
        epilog = "\n  ".join(["examples:", *examples]) if examples else None
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(epilog=epilog, formatter_class=formatter, allow_abbrev=False, **options)
        self._renamed = renamed or {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, after an error for the first renamed option."""
        for word in sys.argv[1:] if args is None else args:
            if (new := self._renamed.get(old := word.partition("=")[0])) is not None:
                self.error(f"{old} was renamed: use {new}")
        return super().parse_known_args(args, namespace)


def run_command(name: str, command: Callable[[], object], *failures: type[Exception]) -> int:
    """Run a command; on an expected failure print one line that starts with `name`, and return 1."""
    try:
        command()
    except failures as error:
        print(f"{name}: {' / '.join(str(error).splitlines())}", file=sys.stderr)
        return 1
    return 0
