"""A minute of mixed load in both modes, with killed workers and clients that leave, on a real TorchServe."""

import pytest

from tests.nightly.soak import soaked


@pytest.mark.timeout(900)  # archives, six workers, a minute of load, kills beyond it
def test_minute_of_mixed_load_with_killed_workers_loses_crosses_and_leaks_nothing() -> None:
    assert soaked(minutes=1, mode="both", seed=1) == []
