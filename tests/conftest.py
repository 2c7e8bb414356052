import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none: deselected and counted as such, not skipped."""
    if torch.cuda.is_available():
        return
    lacking = [item for item in items if item.get_closest_marker("gpu")]
    if lacking:
        config.hook.pytest_deselected(items=lacking)
        items[:] = [item for item in items if item not in lacking]
