"""A server whose start is interrupted."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.models import ROOT
from deploy.sandbox import make_settings

# It interrupts its parent, and writes its id a moment later.
LAUNCHER = """#!/bin/sh
[ "$1" = --stop ] || { kill -INT $PPID; sleep 1; }
echo done > "$TMPDIR/launched"
"""
START = """
import pathlib, sys
from deploy.run.server import Server
folder = pathlib.Path(sys.argv[1])
sys.executable = str(folder / "python")
try:
    Server(folder / "config.properties", directory=folder, temporary=folder).start()
except KeyboardInterrupt:
    print("interrupted", (folder / "launched").exists())
"""


@pytest.mark.builds
def test_signal_during_the_start_waits_for_the_launcher_which_names_its_java(tmp_path: Path) -> None:
    launcher = tmp_path / "torchserve"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    config = tmp_path / "config.properties"
    config.write_text("\n".join(f"{name}={value}" for name, value in make_settings(tmp_path).items()))
    command = [sys.executable, "-c", START, str(tmp_path)]
    started = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert started.stdout == "interrupted True\n", started.stderr
