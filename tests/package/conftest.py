"""The command, as a user calls it."""

import os
import subprocess
import sys
from pathlib import Path

from deploy.models import ROOT


def run(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    program = [sys.executable, "-m", "torchserve_batching", *words]
    return subprocess.run(program, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
