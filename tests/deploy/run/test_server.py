"""A server whose start is interrupted."""

import signal
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from deploy.run.server import Server
from deploy.sandbox import make_settings

# It interrupts its parent, and writes its id a moment later.
LAUNCHER = """#!/bin/sh
[ "$1" = --stop ] || { kill -ALRM $PPID; sleep 1; }
echo done > "$TMPDIR/launched"
"""


class Interrupt(BaseException):
    """An interrupt that would not end the test's process."""


def test_signal_during_the_start_waits_for_the_launcher_which_names_its_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = tmp_path / "torchserve"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    config = tmp_path / "config.properties"
    config.write_text("\n".join(f"{name}={value}" for name, value in make_settings(tmp_path).items()))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    def interrupt(*_: object) -> NoReturn:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupt):
            Server(config, directory=tmp_path, temporary=tmp_path).start()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (tmp_path / "launched").exists()
