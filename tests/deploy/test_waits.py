"""What `make serve` says while it waits."""

import io

import pytest
from rich.console import Console

from deploy.waits import Waits


def test_waits_without_a_terminal_say_in_a_line_each_when_they_begin(capsys: pytest.CaptureFixture[str]) -> None:
    with Waits(Console(file=io.StringIO(), force_terminal=False)) as waits:
        with waits.on("resnet-152: waiting for its worker"), waits.on("[other]: waiting"):
            assert capsys.readouterr().out == "resnet-152: waiting for its worker ...\n[other]: waiting ...\n"
        print("resnet-152: registered")
    assert capsys.readouterr().out == "resnet-152: registered\n"


def test_waits_on_a_terminal_are_live_lines_with_seconds_that_go_when_they_are_over() -> None:
    shown = io.StringIO()
    with Waits(Console(file=shown, force_terminal=True, width=80)) as waits:
        with waits.on("resnet-152: waiting for its worker"), waits.on("[other]: waiting"):
            waits.refresh()
            lines = shown.getvalue()
        shown.truncate(0)
        waits.refresh()
    assert "resnet-152: waiting for its worker, 0 s" in lines
    assert "[other]: waiting, 0 s" in lines
    assert "waiting" not in shown.getvalue()


def test_wait_that_fails_takes_its_line_away_and_lets_the_error_pass() -> None:
    shown = io.StringIO()
    with Waits(Console(file=shown, force_terminal=True, width=80)) as waits:
        with pytest.raises(LookupError), waits.on("TorchServe: starting"):
            raise LookupError
        shown.truncate(0)
        waits.refresh()
    assert "starting" not in shown.getvalue()
