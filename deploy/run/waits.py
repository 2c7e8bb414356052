"""What a command waits for, said while it waits; and what nobody may miss.

with Waits() as waits, waits.on("TorchServe: starting"): ...    -> "TorchServe: starting, 2 s", until it is over
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn


def banner(*lines: str) -> None:
    """Print on stderr what nobody may miss."""
    print("\n".join(["", "!" * 80, *(f"!!  {line}" for line in lines), "!" * 80, ""]), file=sys.stderr)


class Waits:
    """A live line with its seconds for each; without a terminal, a line when each begins."""

    def __init__(self, console: Console | None = None) -> None:
        """Show nothing yet.

        Args:
            console: where to; stdout unless given.
        """
        self._console = console or Console()
        columns = (SpinnerColumn(), TextColumn("{task.description}, {task.elapsed:.0f} s", markup=False))
        self._lines = Progress(*columns, console=self._console, transient=True)

    def __enter__(self) -> Self:
        self._lines.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lines.stop()

    def refresh(self) -> None:
        """Draw the live lines now; they are drawn ten times a second anyhow."""
        self._lines.refresh()

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Say what is waited for, in any thread, for as long as it lasts."""
        if not self._console.is_terminal:
            print(f"{what} ...", flush=True)
            yield
            return
        line = self._lines.add_task(what, total=None)
        try:
            yield
        finally:
            self._lines.remove_task(line)
