"""Waits for a condition by polling it."""

import time
from collections.abc import Callable

# Far above the usual times, for a machine that stalls.
PATIENCE_S = 60.0


def until(holds: Callable[[], object], timeout_s: float = PATIENCE_S, every_s: float = 0.05) -> float:
    """Wait until something holds; return the seconds that it took."""
    started_s = time.monotonic()
    while not holds():
        assert time.monotonic() - started_s < timeout_s, f"not so after {timeout_s:g} s"
        time.sleep(every_s)
    return time.monotonic() - started_s
