"""A test that leaves a thread behind fails: a core's, which would end the process in a later test, or a server's.

What a fixture of a module or of the session starts may stay until its end. Python warns of a process that is left
behind, and a warning is a failure.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lightness import HEAVY_FOLDERS, SLEEP

# Seconds in which a thread that has been told to end must have ended, on a machine that stalls.
ENDS_S = 20.0
# Starts of the names of threads that a library starts once for the process, that end with their pool, or that no later
# test would notice.
KEPT = ("Dummy-", "tqdm", "asyncio-waitpid", "asyncio_", "decode_", "reader_", "metrics", "loop of tests")
CORE = ("watch", "engine", "decode")
# The threads before a test, and those of fixtures of a longer life.
_known: set[threading.Thread] = set()


def _must_end(name: str, is_heavy: object) -> bool:
    return name in CORE if is_heavy else not name.startswith(KEPT)


def pytest_collection_finish() -> None:
    _known.update(threading.enumerate())


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[None]:
    before = {*threading.enumerate()}
    try:
        return (yield)
    finally:
        if fixturedef.scope != "function":
            _known.update({*threading.enumerate()} - before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Wait for the threads that the test and its fixtures have told to end; of tests that build, for a core's."""
    result, ends_s = (yield), time.monotonic() + ENDS_S
    is_heavy = item.get_closest_marker("builds") is not None or HEAVY_FOLDERS & {*item.path.parts}
    while left := [each for each in threading.enumerate() if each not in _known and _must_end(each.name, is_heavy)]:
        if time.monotonic() > ends_s:
            break
        SLEEP(0.01)
    _known.clear()
    _known.update(threading.enumerate())
    if left:
        pytest.fail(f"the test left threads behind: {', '.join(sorted(each.name for each in left))}", pytrace=False)
    return result
