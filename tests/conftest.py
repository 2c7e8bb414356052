"""Tiers by folder and mark, and the settings of every test.

tests/            `make check`: no build, no server, no network, no package but those of requirements.lock
    mark builds   `make test`: exports or builds a model, or starts a server (tests/lightness.py)
tests/e2e/        `make test`: a real TorchServe
tests/nightly/    `make test-all`: minutes, or Debian's packages, or a separate environment
"""

import functools
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import ts  # noqa: F401 tests run handlers as TorchServe's worker does

from tests.tiers import LEFT_OUT

# A machine that stalls must not fail a property; each run has the same examples.
hypothesis.settings.register_profile("house", deadline=None, derandomize=True)
hypothesis.settings.register_profile("fuzz", deadline=None, max_examples=int(os.environ.get("EXAMPLES", "2000")))
hypothesis.settings.load_profile("house")

TESTS = Path(__file__).parent
# Seconds of a test, where it states no other: a server's first test has the start of the server and its archives in it.
TIMEOUTS_S = {TESTS / "nightly": 900}


# Folders whose tests all have the mark `builds`: each starts an Envoy.
BUILDING = (TESTS / "deploy" / "gateway" / "envoy",)
BUILDS = "\npytestmark = pytest.mark.builds"  # in a module whose tests all have it


def has_gpu() -> bool:
    import torch  # noqa: PLC0415 - seconds, where no test needs a GPU

    return torch.cuda.is_available()


def has_bf16() -> bool:
    """Whether OpenVINO runs bf16 on this processor, as ONEDNN_MAX_CPU_ISA allows it."""
    import openvino  # noqa: PLC0415

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


# Mark -> whether this machine can run its tests.
NEEDS: dict[str, Callable[[], bool]] = {
    name: functools.cache(check) for name, check in (("gpu", has_gpu), ("bf16", has_bf16))
}


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """`initialize` sets levels for a worker's lifetime; a test's is shorter."""
    levels = {name: logging.getLogger(name).level for name in (None, "ts.metrics")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    vars(sys).pop("tracebacklimit", None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a module without a test of the tier, which would take seconds."""
    tier: str | None = config.option.tier
    if tier not in ("check", "builds") or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    is_heavy = any(collection_path.is_relative_to(folder) for folder in BUILDING) or BUILDS in text
    return True if (is_heavy if tier == "check" else not is_heavy and "mark.builds" not in text) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Set the timeouts of slow folders, and deselect the tests that this machine cannot run or another tier has."""
    kept: list[pytest.Item] = []
    lacking: list[pytest.Item] = []
    tier = config.option.tier
    left_out = config.stash.setdefault(LEFT_OUT, {})
    for item in items:
        if item.get_closest_marker("timeout") is None:
            for folder, seconds in TIMEOUTS_S.items():
                if item.path.is_relative_to(folder):
                    item.add_marker(pytest.mark.timeout(seconds))
        if any(item.path.is_relative_to(folder) for folder in BUILDING):
            item.add_marker("builds")
        if tier in ("check", "builds") and (item.get_closest_marker("builds") is None) is (tier == "builds"):
            lacking.append(item)
            continue
        needs = [name for name, check in NEEDS.items() if item.get_closest_marker(name) and not check()]
        (lacking if needs else kept).append(item)
        for name in needs:
            left_out[name] = left_out.get(name, 0) + 1
    if lacking:
        config.hook.pytest_deselected(items=lacking)
        items[:] = kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, {})


def pytest_collection_finish() -> None:
    """Leave what torch and transformers have imported, millions of objects, out of every later garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name bytes by their number: workers of xdist must find the same ids, and gzip writes the time of day."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) else None
