"""Progress, warnings and summary of a command.

On a terminal each step has one live line; elsewhere a step of SHOWN_S or longer prints one line when it ends. Progress
and warnings go to stderr, the summary to stdout. Colour appears only on a terminal, and without NO_COLOR.
"""

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from deploy.command import say

SHOWN_S = 2.0  # seconds after which a step is worth a line
WIDTH = 80  # characters of a warning's frame

_lock = threading.Lock()
_displays: list[Progress] = []


@contextmanager
def step(what: str) -> Iterator[None]:
    """Show a step while it runs, and its seconds when it has ended without an error. Any thread may call it."""
    started_s = time.monotonic()
    with _live(what) if sys.stderr.isatty() else nullcontext():
        yield
    if (seconds := time.monotonic() - started_s) >= SHOWN_S:
        say(f"{what} ({seconds:.0f} s)", sys.stderr)


@contextmanager
def _live(what: str) -> Iterator[None]:
    """Keep a line with the elapsed time on the terminal; concurrent steps share one display."""
    with _lock:
        if not _displays:
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            # This stream, even if sys.stderr is replaced later to silence a library.
            console = Console(file=sys.stderr, force_terminal=True)
            _displays.append(Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()))
            _displays[0].start()
        display = _displays[0]
        task = display.add_task(what, total=None)
    try:
        yield
    finally:
        with _lock:
            display.remove_task(task)
            if not display.tasks:
                _displays.pop().stop()


def printable(line: str) -> str:
    """Escape the control characters of a line, which a foreign file's names may send to a terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)


def warn(*lines: str) -> None:
    frame = "!" * WIDTH
    say("\n".join(["", frame, *(f"!!  {line}" for line in lines), frame, ""]), sys.stderr)


def show(rows: Iterable[tuple[str, str]]) -> None:
    console = Console(force_terminal=sys.stdout.isatty(), highlight=False, soft_wrap=True)
    for name, value in rows:
        console.print(Text.assemble((f"{name:<10}", "cyan"), f" {value}"))
