"""Small faults in the code, other ones every day, and the share that the tests notice."""

import subprocess
import sys
from datetime import UTC, datetime

import pytest

from deploy.models import ROOT


@pytest.mark.timeout(5400)  # with the measure of check and builds
def test_most_small_faults_are_noticed(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["-W", "ignore", "-m", "tests.mutants", "--number", "60", "--minutes", "30"]
    words += ["--seed", f"{datetime.now(UTC):%Y%m%d}"]
    with capfd.disabled():  # the table is the result
        done = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        print(done.stdout)
    assert "noticed: " in done.stdout.splitlines()[-1]
