"""No test without the mark `builds` exports or builds a model, starts a server, or sleeps: it fails at that call.

A test that must has the mark, or its module has, and belongs to the tier `builds` (tests/conftest.py).
"""

import sys
import time
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, NoReturn

import pytest

# Programs, and modules of `python -m`, that a light test never starts: the archiver and the servers.
PROGRAMS = {"torch-model-archiver", "torchserve", "java", "envoy", "ray"}
PROGRAMS |= {f"deploy.{name}" for name in ("nodes.run", "gateway", "hosts.serve")}
# Seconds of one sleep. A loop that waits for a condition sleeps for less.
SLEEP_S = 0.3
SLEEP = time.sleep
HEAVY_FOLDERS = {"e2e", "nightly"}

# The test that is running, if it must be light.
_light: list[str] = []


def _refuse(what: str) -> NoReturn:
    pytest.fail(f"{what}: only a test with the mark `builds` may (tests/lightness.py)")


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Hear of each process, from any module and thread."""
    if _light and event == "subprocess.Popen":
        words = {Path(str(word)).name for word in arguments[1]}
        if started := words & PROGRAMS:
            _refuse(f"starts {', '.join(started)}")


def _watch_calls(owner: Any, name: str) -> None:
    function = getattr(owner, name)

    @wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        # A thread of an earlier test may sleep.
        is_free = function is SLEEP and (args[0] <= SLEEP_S or current_thread() is not main_thread())
        if _light and not is_free:
            _refuse(f"{owner.__name__}.{name}")
        return function(*args, **kwargs)

    setattr(owner, name, watched)


def pytest_configure(config: pytest.Config) -> None:
    """Watch for the whole session: fixtures of a module run within its first test."""
    if config.option.dist != "no":
        return  # other processes run the tests, and this one starts sooner
    import openvino  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from ctranslate2.converters import TransformersConverter  # noqa: PLC0415

    sys.addaudithook(_watch)
    # An export or a conversion takes a second or more.
    exporters = ((openvino, "convert_model"), (torch.export, "export"), (torch.onnx, "export"))
    for owner, name in (*exporters, (TransformersConverter, "convert"), (time, "sleep")):
        _watch_calls(owner, name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Name the test for as long as it and its fixtures run."""
    if item.get_closest_marker("builds") is None and not HEAVY_FOLDERS & {*item.path.parts}:
        _light.append(item.nodeid)
    try:
        return (yield)
    finally:
        _light.clear()
