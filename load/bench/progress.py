"""What a person sees while the numbers come in: lines on stderr, beside the table on stdout."""

import contextlib
import sys
from collections.abc import Iterator


def progress(line: str) -> None:
    """Say one line."""
    print(f"bench: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """What others print meanwhile goes to stderr too."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
