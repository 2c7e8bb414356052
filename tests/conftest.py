import hypothesis
import pytest
import torch

# A machine that stalls for a second must not fail a property.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none: deselected and counted as such, not skipped."""
    if torch.cuda.is_available():
        return
    lacking = [item for item in items if item.get_closest_marker("gpu")]
    if lacking:
        config.hook.pytest_deselected(items=lacking)
        items[:] = [item for item in items if item not in lacking]
