"""Times the steps of a request inside a worker: goes into a copy of an archive, and needs the standard library alone.

    the archive's own file -> install: functions around the hooks, a thread that answers on a socket
    connection             -> one JSON object: what each step took so far, and each kind of thread

Steps are timed in the processor time of the thread that they run on, without the steps inside them. What the functions
around them take themselves is measured as the worker loads, and is taken out by who reads it (`own_s`). A hook that is
not there is passed over, so that this outlives its being moved; its time is then in the step around it, or in the rest
of its thread.
"""

import inspect
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

# Step -> the hooks that it consists of: module, class or none, function. `TASK` is the archive's own class.
TASK = ""
HOOKS: dict[str, tuple[tuple[str, str | None, str], ...]] = {
    "receive": (
        ("__main__", None, "retrieve_msg"),
        ("ts.service", "Service", "retrieve_data_for_inference"),
        ("handlers.adaptive.frontend", "Link", "receive"),
    ),
    "unpack": (("handlers.pipeline.runner", "Runner", "read"),),
    "decode": (("handlers.pipeline.runner", "Runner", "decode"), ("handlers.pipeline.runner", "Runner", "prepare")),
    "plan": (
        ("handlers.base", "BatchHandler", "preprocess"),
        ("handlers.pipeline.runner", "Runner", "price"),
        ("handlers.pipeline.runner", "Runner", "run"),
        ("handlers.adaptive.arrivals", "Arrivals", "arrived"),
        ("handlers.adaptive.arrivals", "Arrivals", "decoded"),
        ("handlers.adaptive.in_flight", "InFlight", "count"),
        ("handlers.adaptive.in_flight", "InFlight", "take_complete"),
        ("handlers.adaptive.in_flight", "InFlight", "take_missing"),
        ("handlers.adaptive.response_timing", "ResponseTiming", "due_s"),
        ("handlers.scheduling.scheduler", "Scheduler", "next_batch"),
        ("handlers.scheduling.scheduler", "Scheduler", "expire"),
        ("handlers.scheduling.scheduler", "Scheduler", "finish"),
        ("handlers.scheduling.scheduler", "Scheduler", "answered"),
    ),
    "collate": ((TASK, None, "collate"),),
    "engine": ((TASK, None, "forward"),),
    "split": (("handlers.pipeline.runner", "Runner", "split"),),
    "pack": (
        ("handlers.base", "BatchHandler", "postprocess"),
        ("handlers.base", None, "respond"),
        ("handlers.pipeline.runner", "Runner", "answer"),
        ("handlers.adaptive.replies", "Replies", "whole"),
    ),
    "metrics": (
        ("handlers.metrics", "Recorder", "record"),
        ("handlers.metrics", "Recorder", "add"),
        ("handlers.metrics", "Recorder", "observe"),
    ),
    "send": (
        ("__main__", None, "create_predict_response"),
        ("ts.service", None, "create_predict_response"),
        ("handlers.adaptive.frontend", "Link", "send"),
    ),
}
# Kinds of threads: Python's by the beginning of their names, and those of libraries.
REPORTER, OTHER, NATIVE = "metrics", "other", "native"
KINDS = (REPORTER, "MainThread", "decode", "engine")
# Calls that the clock measures itself with.
CALLS = 20_000


class _Stack(threading.local):
    """What the steps inside each step of a thread took, and how many they were, the outermost first."""

    def __init__(self) -> None:
        self.inner: list[list[float]] = [[0.0, 0]]


class HookClock:
    """Adds up what each step takes, on any number of threads."""

    def __init__(self) -> None:
        """Measure nothing yet but the clock itself."""
        self._stack = _Stack()
        self._lock = threading.Lock()
        # Step -> seconds without the steps inside, calls, calls of steps inside.
        self._steps: dict[str, list[float]] = {}
        self._top_calls = 0
        self._inside_s, self._around_s = self._measure_itself()

    def timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function."""
        totals = self._steps.setdefault(step, [0.0, 0, 0])
        stack, lock, clock = self._stack, self._lock, time.thread_time

        def call(*arguments: Any, **named: Any) -> Any:
            inner = stack.inner
            mine = [0.0, 0]
            inner.append(mine)
            started_s = clock()
            try:
                return function(*arguments, **named)
            finally:
                took_s = clock() - started_s
                inner.pop()
                outer = inner[-1]
                outer[0] += took_s
                outer[1] += 1
                with lock:
                    totals[0] += took_s - mine[0]
                    totals[1] += 1
                    totals[2] += mine[1]
                    self._top_calls += len(inner) == 1

        return call

    def told(self) -> dict[str, Any]:
        """Say what was measured so far.

        Returns:
            `steps`: seconds, calls, and calls of steps inside, by step; `threads`: seconds by kind of thread; `top`:
            calls that were inside no other; `inside_s` and `around_s`: seconds that a call of the clock itself adds to
            its step, and to what is around that.
        """
        with self._lock:
            steps = {step: list(totals) for step, totals in self._steps.items()}
            top = self._top_calls
        return {
            "steps": steps,
            "top": top,
            "threads": threads_s(),
            "inside_s": self._inside_s,
            "around_s": self._around_s,
        }

    def _measure_itself(self) -> tuple[float, float]:
        def nothing() -> None:
            pass

        def per_call_s(function: Callable[[], None]) -> float:
            started_s = time.thread_time()
            for _ in range(CALLS):
                function()
            return (time.thread_time() - started_s) / CALLS

        wrapped = self.timed("nothing", nothing)
        # The step itself begins a stack of its own here, as every hook has one around it.
        all_s, plain_s = per_call_s(wrapped), per_call_s(nothing)
        inside_s = self._steps.pop("nothing")[0] / CALLS - plain_s
        self._top_calls = 0
        self._stack.inner[0][:] = [0.0, 0]
        return inside_s, all_s - plain_s - inside_s


def threads_s() -> dict[str, float]:
    """Return the processor seconds of this process so far by kind of thread: Python's by name, NATIVE for all others.

    A thread that has ended is no longer counted.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[str, float] = {}
    for id_, seconds in thread_seconds("self").items():
        name = names.get(id_)
        kind = NATIVE if name is None else next((kind for kind in KINDS if name.startswith(kind)), OTHER)
        found[kind] = found.get(kind, 0.0) + seconds
    return found


def thread_seconds(process: int | str) -> dict[int, float]:
    """Return the processor seconds of each thread of a process, by its id."""
    found = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            found[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (OSError, IndexError):  # it has just ended
            continue
    return found


def install(module_name: str, path: str) -> None:
    """Time the hooks from now on, and tell whoever connects.

    Args:
        module_name: that of the archive's file, which holds one class, as TorchServe has it.
        path: of the socket.
    """
    held = vars(sys.modules[module_name]).values()
    (task,) = [each for each in held if isinstance(each, type) and each.__module__ == module_name]
    clock = HookClock()
    for step, hooks in HOOKS.items():
        for module, owner_name, name in hooks:
            owner = _owner(module, owner_name, task)
            if owner is None or not hasattr(owner, name):
                continue
            found = inspect.getattr_static(owner, name)
            function = found.__func__ if isinstance(found, staticmethod) else getattr(owner, name)
            wrapped = clock.timed(step, function)
            setattr(owner, name, staticmethod(wrapped) if isinstance(found, staticmethod) else wrapped)
    threading.Thread(target=_tell, args=(clock, path), name="bench", daemon=True).start()


def _owner(module: str, owner: str | None, task: type) -> Any:
    """Find what has a hook; None where there is none."""
    if module == TASK:
        return task
    try:
        found = sys.modules[module] if module == "__main__" else import_module(module)
    except ImportError:
        return None
    return found if owner is None else getattr(found, owner, None)


def _tell(clock: HookClock, path: str) -> None:
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(json.dumps(clock.told()).encode())
