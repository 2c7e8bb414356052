import gc
from pathlib import Path

import hypothesis
import pytest
import torch

# A machine that stalls for a second must not fail a property.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")

E2E = Path(__file__).parent / "e2e"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by folder what drives a server; leave out what needs a GPU where there is none, counted as deselected."""
    for item in items:
        if item.path.is_relative_to(E2E):
            item.add_marker(pytest.mark.e2e)
    if torch.cuda.is_available():
        return
    lacking = [item for item in items if item.get_closest_marker("gpu")]
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
