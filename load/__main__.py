"""Runs `python -m load`; `--help` and README.md beside this file say what it does.

Progress goes to stderr, tables to stdout. Exit codes: 0 it is done (a step that is not valid says so), 2 it is not
possible, 130 Ctrl-C ended it (what was measured is kept).
"""

import sys

from load.cli import commands
from load.cli.arguments import parser
from load.errors import LoadError

IMPOSSIBLE, INTERRUPTED = 2, 130


def main(arguments: list[str]) -> int:
    """Run one command and return its exit code; a measurement that cannot be made is one line on stderr."""
    options = parser().parse_args(arguments)
    try:
        return commands.COMMANDS[options.command](options)
    except LoadError as error:
        print(f"load: {error}", file=sys.stderr)
        return IMPOSSIBLE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
