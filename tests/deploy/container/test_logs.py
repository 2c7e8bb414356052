"""Log files on stdout: whole lines, once, across a file that was put aside."""

import io
from pathlib import Path

import pytest

from deploy.container.logs import Follow
from tests.deploy.gateway.envoy.harness import wait


def test_lines_that_are_added_are_copied_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.container.logs.LOOK_S", 0.01)
    old, new, out = tmp_path / "old.log", tmp_path / "new.log", io.BytesIO()
    old.write_bytes(b"of the last process\n")
    follow = Follow([old, new], out)
    follow.start()
    new.write_bytes(b"first\nsec")
    wait(lambda: out.getvalue() == b"first\n")
    with new.open("ab") as file:
        file.write(b"ond\n")
    wait(lambda: out.getvalue() == b"first\nsecond\n")
    new.rename(tmp_path / "new.1.log")
    new.write_bytes(b"third\n")
    wait(lambda: out.getvalue().endswith(b"third\n"))
    with old.open("ab") as file:
        file.write(b"last\n")
    follow.stop()
    assert out.getvalue() == b"first\nsecond\nthird\nlast\n"
