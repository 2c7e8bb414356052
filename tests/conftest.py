import functools
import gc
import json
import subprocess
from pathlib import Path

import hypothesis
import pytest
import torch

# A machine that stalls for a second must not fail a property.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")

E2E = Path(__file__).parent / "e2e"

KUBECTL = "kubectl: renders deploy/kubernetes, with a kubectl of 1.27 or newer (deselected, and said, without one)"


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by folder what drives a server; leave out what needs a GPU or kubectl that is not there, as deselected."""
    for item in items:
        if item.path.is_relative_to(E2E):
            item.add_marker(pytest.mark.e2e)
    lacking = [
        item
        for item in items
        if (item.get_closest_marker("gpu") and not torch.cuda.is_available())
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
