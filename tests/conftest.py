import functools
import gc
import json
import subprocess
from pathlib import Path

import hypothesis
import pytest

from tests.marks import Marks, marks_of, may_select

# A machine that stalls for a second must not fail a property.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")

TESTS = Path(__file__).parent
E2E = TESTS / "e2e"
# Seconds of a test of a server, where it says no other: the session's first has the start of the server and its
# archives in it, and may wait for another process to make their exports.
E2E_TIMEOUT_S = 300
# Modules in the order in which xdist's processes take them: the longest first, so that none is left with one of them
# while others have nothing to do any more. A process that begins with a single test is given its next module at
# once, to be run after it even where others are free by then: short ones stand there for that.
FIRST = (
    "test_readme.py",
    "e2e/test_soak.py",
    "e2e/test_custom_task.py",
    "e2e/test_grpc.py",
    "e2e/test_texts.py",
    "e2e/test_rollout.py",
    "e2e/test_production.py",
    "e2e/test_nodes.py",
    "e2e/test_adaptive.py",
    "e2e/test_failures.py",
    "e2e/test_client.py",
    "e2e/test_bodies.py",
    # Of `make check`: the longest, half of its time.
    "deploy/test_archive.py",
    "handlers/tasks/test_image_classification.py",
    "handlers/engines/test_engines.py",
    "load/measure/test_exchanges.py",
    "handlers/tasks/test_sentence_embedding.py",
    "handlers/scheduling/test_scheduler.py",
    "handlers/tasks/test_translation.py",
    "deploy/test_custom_task.py",
    "handlers/tasks/test_token_classification.py",
    "load/autoscale/test_study.py",
    "deploy/test_own_models.py",
    "handlers/pipeline/test_description.py",
    "handlers/test_worker_imports.py",
)

KUBECTL = "kubectl: renders deploy/kubernetes, with a kubectl of 1.27 or newer (deselected, and said, without one)"


@functools.cache
def has_gpu() -> bool:
    """Whether there is a CUDA device; torch is imported for whoever asks."""
    import torch  # noqa: PLC0415

    return torch.cuda.is_available()


@functools.cache
def has_kubectl() -> bool:
    """Whether there is a kubectl whose kustomize knows what deploy/kubernetes is written in; Debian's is too old."""
    try:
        said = subprocess.run(
            ["kubectl", "version", "--client", "--output", "json"], capture_output=True, check=True, timeout=60
        )
        return str(json.loads(said.stdout)["kustomizeVersion"]).startswith("v5.")
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return False


def pytest_configure(config: pytest.Config) -> None:
    """Add the mark of tests that render deploy/kubernetes."""
    config.addinivalue_line("markers", KUBECTL)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say that deploy/kubernetes was not rendered, where it could not be."""
    if not has_kubectl():
        terminalreporter.write_line("deploy/kubernetes was not rendered: no kubectl of 1.27 or newer", yellow=True)


@functools.cache
def marks(path: Path) -> Marks:
    """What the tests of a module are marked with: every test of tests/e2e is one of a server."""
    return marks_of(path, *(["e2e"] if path.is_relative_to(E2E) else []))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a module, or a folder's conftest.py, of which `-m` selects nothing, unless it is named itself."""
    expression = config.option.markexpr
    modules = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    if not expression or (not collection_path.is_dir() and not collection_path.match("test_*.py")):
        return None
    return None if any(may_select(expression, marks(module)) for module in modules) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by folder what drives a server; leave out what needs a GPU or kubectl that is not there, as deselected."""
    places = {TESTS / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    for item in items:
        if item.path.is_relative_to(E2E):
            item.add_marker(pytest.mark.e2e)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(E2E_TIMEOUT_S))
        # Else `-m` could pass over a module that it selects a test of.
        names = {mark.name for mark in item.iter_markers()}
        if not marks(item.path).are(names):
            raise pytest.UsageError(
                f"{item.nodeid}: its marks {sorted(names)} are not those that its module writes out"
            )
    lacking = [
        item
        for item in items
        if (item.get_closest_marker("gpu") and not has_gpu())
        or (item.get_closest_marker("kubectl") and not has_kubectl())
    ]
    if lacking:
        config.hook.pytest_deselected(items=lacking)
        items[:] = [item for item in items if item not in lacking]


def pytest_collection_finish() -> None:
    """Leave what torch and transformers have imported, millions of objects, out of every later garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name bytes by their number: workers of xdist must find the same ids, and gzip writes the time of day."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) else None
