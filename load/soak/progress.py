"""Shows a person how far a soak is: lines on stderr, beside the table on stdout."""

import contextlib
import sys
from collections.abc import Iterator


def progress(line: str) -> None:
    """Print one line."""
    print(f"soak: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Send what others print meanwhile to stderr too."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
