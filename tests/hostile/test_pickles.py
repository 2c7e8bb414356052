"""A malformed file of weights is read or refused: no signal, no hang and no growth, in child processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# `make fuzz` reads ten files for each of its examples, 20,000 by default.
PARTS, COUNT = (8, int(os.environ["EXAMPLES"]) * 10) if "EXAMPLES" in os.environ else (1, 300)


@pytest.mark.builds
@pytest.mark.parametrize("seed", range(PARTS))
def test_mutated_files_of_weights_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.hostile.pickles", str(tmp_path), str(seed), str(COUNT // PARTS)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, (tmp_path / "w.pt", finished.stderr[-2000:])
    assert 0 < int(finished.stdout) < COUNT // PARTS
    assert {path.name for path in tmp_path.iterdir()} == {"w.pt"}
