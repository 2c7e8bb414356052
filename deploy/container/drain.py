"""Takes a node out: by itself where it gets a SIGTERM, and by `python -m deploy.container drain`, the preStop hook.

    drain            the mark -> the node's process sees it; waits until `drained`, or the process is gone
    the process      /ready and /models fail -> notice_s -> nothing in flight, nothing new -> `drained`

Requests in flight, and those that still come, are answered all the while.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

STATE, MARK = "state.json", "drain"
STARTING, SERVING, DRAINING, DRAINED = "starting", "serving", "draining", "drained"
# Seconds in which nothing must have come, and between two looks.
QUIET_S, LOOK_S = 1.0, 0.1


@dataclass(frozen=True, slots=True)
class State:
    """What a node's process says of itself, in a file of its run folder.

    Attributes:
        pid, created: the process, and when it was started: ids are used again.
        phase: STARTING, SERVING, DRAINING or DRAINED.
        in_flight: requests without an answer, while it drains; of one that is DRAINED those that were given up.
    """

    pid: int
    created: float
    phase: str
    in_flight: int = 0

    def write(self, run: Path) -> None:
        """Leave it; whoever reads meanwhile sees the old one or the new one."""
        new = run / f"{STATE}.new"
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        new.replace(run / STATE)

    @classmethod
    def of_this(cls, phase: str, in_flight: int = 0) -> "State":
        """Make this process' own."""
        return cls(os.getpid(), psutil.Process().create_time(), phase, in_flight)

    @classmethod
    def read(cls, run: Path) -> "State | None":
        """What the process says that runs there; None where none does."""
        try:
            state = cls(**json.loads((run / STATE).read_text(encoding="utf-8")))
            return state if psutil.Process(state.pid).create_time() == state.created else None
        except (OSError, ValueError, TypeError, psutil.Error):
            return None


class Drain:
    """When a node that drains has drained; told the time."""

    def __init__(self, began_s: float, notice_s: float) -> None:
        """Begin.

        Args:
            began_s: when the node's health answers began to fail.
            notice_s: seconds until every edge has seen it.
        """
        self._began_s = began_s
        self._notice_s = notice_s
        self._arrived = -1
        self._last_s = began_s

    def is_over(self, now_s: float, *, in_flight: int, arrived: int, limit_s: float) -> bool:
        """Whether nothing is to be waited for any more.

        Args:
            now_s: the time.
            in_flight: requests without an answer.
            arrived: requests ever.
            limit_s: seconds that an answer may take, after which what has none is given up.
        """
        if arrived != self._arrived:
            self._arrived, self._last_s = arrived, now_s
        since_notice_s = now_s - self._began_s - self._notice_s
        if since_notice_s > limit_s:
            return True
        return since_notice_s >= 0 and in_flight == 0 and now_s - self._last_s >= QUIET_S


def drain(run: Path, say: Callable[[str], None]) -> bool:
    """Have the node of a run folder drain, and wait until it has, or has ended.

    Returns:
        Whether all had been answered, as far as is known.

    Raises:
        FileNotFoundError: no node runs there.
    """
    state = State.read(run)
    if state is None:
        raise FileNotFoundError(f"no node runs in {run}")
    (run / MARK).touch(mode=0o600)
    said = -1
    while state is not None and state.phase != DRAINED:
        if state.phase == DRAINING and state.in_flight != said:
            said = state.in_flight
            say(f"{said} requests in flight")
        time.sleep(LOOK_S)
        state = State.read(run)
    return state is None or state.in_flight == 0
