"""Command-line arguments of this package's command and of programs that import it: checked values, one-line errors."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from math import inf
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

Parameters = ParamSpec("Parameters")

FAILED = 1  # exit code of a failure
USAGE = 2  # exit code of wrong usage
CLOSED = 141  # exit code if the reader of the output has ended (`--help | head`): 128 + SIGPIPE, as a shell reports it
# Seconds of each unit of a duration; a number without a unit is seconds.
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "h": 3600.0}


def ends_with_reader(main: Callable[Parameters, int]) -> Callable[Parameters, int]:
    """Let a program end without a traceback if the reader of its output has ended, or the disk is full."""

    @wraps(main)
    def run(*arguments: Parameters.args, **options: Parameters.kwargs) -> int:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # it was closed before the start (`>&-`)
                setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        try:
            try:
                return main(*arguments, **options)
            finally:
                sys.stdout.flush()
        except OSError:
            try:
                sys.stdout.flush()
            except OSError as error:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                if isinstance(error, BrokenPipeError):
                    return CLOSED
                sys.stderr.write(f"standard output: {error.strerror}\n")
                return FAILED
            raise

    return run


class Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line, and whose --help ends with examples."""

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **options: Any) -> None:
        options |= {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(*arguments, **options)
        if examples:
            self.show_examples("", examples)

    def show_examples(self, program: str, lines: Sequence[str]) -> None:
        """End --help with calls of a program."""
        self.epilog = "\n  ".join(("examples:", *(f"{program}{line}" for line in lines)))

    def error(self, message: str) -> NoReturn:
        """Print the error, after the name of the program, and exit with code 2."""
        name = self.prog.removeprefix("python -m ").removeprefix("torchserve-batching ").split()[0].rpartition(".")[2]
        self.exit(USAGE, f"{name}: {message}; see {self.prog} --help\n")


def duration_s(text: str) -> float:
    """Parse "120", "120s", "500ms", "2m" or "1h" as seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: write 120, 120s, 500ms or 2m")
    return float(match[1]) * UNITS[match[2]]


def number(kind: type[int | float], least: float, most: float = inf, *, is_open: bool = False) -> Callable[[str], Any]:
    """Return a parser of numbers from `least` to `most`; `is_open` excludes `least` itself."""
    words = f"above {least:g}" if is_open else f"of {least:g} or more"
    if most < inf:
        words += f", at most {most:g}" if is_open else f" and at most {most:g}"

    def parse(text: str) -> object:
        try:
            value = kind(text)
        except ValueError:
            value = kind(least) - 1
        if not (least < value <= most if is_open else least <= value <= most) or value == inf:
            raise argparse.ArgumentTypeError(f"{text!r} is not a {'whole ' * (kind is int)}number {words}")
        return value

    return parse
