"""Weights are data: nothing in a file of weights is run."""

import os
import pickle
from pathlib import Path

import pytest

from deploy.models import model
from deploy.sources import WeightsUnavailable, source
from deploy.weights import load


class Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def test_pickle_that_holds_code_is_refused_and_its_code_is_not_run(tmp_path: Path) -> None:
    path, made = tmp_path / "weights.pth", tmp_path / "made"
    path.write_bytes(pickle.dumps({"conv1.weight": Code(made)}))
    entry = model("mobilenet-v2")
    with pytest.raises(WeightsUnavailable, match="is no state dict"):
        load(entry, "mobilenet_v2", source(entry, str(path)))
    assert not made.exists()
