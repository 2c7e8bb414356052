"""Lines of a program at which a test ends it: a process traces itself, and a fork of it does not return."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import TraceFunction


def trace_lines(is_traced: Callable[[CodeType], bool], at_line: Callable[[int, CodeType], object]) -> None:
    """Call `at_line` with 0, 1, ... before each line of that code, in this thread and in those that it starts."""
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> "TraceFunction | None":
        nonlocal seen
        if not is_traced(frame.f_code):
            return None
        if event == "line":
            at_line(seen, frame.f_code)
            seen += 1
        return trace

    threading.settrace(trace)
    sys.settrace(trace)


def count_lines(is_traced: Callable[[CodeType], bool], last: int | None) -> Callable[[], int]:
    """Kill this process at a line; return a function that ends the trace and returns the number of lines."""
    lines = [0]

    def at_line(number: int, _: CodeType) -> None:
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        lines[0] = number + 1

    def end() -> int:
        sys.settrace(None)
        return lines[0]

    trace_lines(is_traced, at_line)
    return end


def run_in_child(run: Callable[[], int]) -> int:
    """Return the code with which a fork of this process ends, or minus the signal."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(run())
