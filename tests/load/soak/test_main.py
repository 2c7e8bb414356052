"""`python -m load.soak`: its command line, its exit codes, and its hard end."""

import subprocess
import sys
import textwrap
import time

import pytest

from deploy.models import ROOT
from load.soak.__main__ import main
from load.soak.run import Plan


@pytest.mark.parametrize(
    "wrong", [["--minutes", "0"], ["--minutes", "2000"], ["--minutes", "nan"], ["--mode", "neither"], ["--seed", "x"]]
)
def test_wrong_command_line_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err


@pytest.mark.parametrize(("minutes", "kills"), [(0.5, 2), (1, 2), (3, 3), (10, 10), (60, 10)])
def test_plan_wants_two_to_ten_kills_and_ends_for_certain(minutes: float, kills: int) -> None:
    plan = Plan("both", minutes, 1)
    assert plan.least_kills == kills
    assert 60 * minutes < plan.hard_end_s < 60 * minutes + 1200


@pytest.mark.parametrize("where", ["asyncio.run(forever())", "time.sleep(60)"])
def test_hard_end_comes_wherever_the_program_hangs_and_what_was_started_is_stopped(where: str) -> None:
    """In a process of its own: the alarm is pytest's too."""
    program = f"""
        import asyncio, sys, time
        from load.soak import __main__ as soak

        async def deaf():
            while True:
                try:
                    await asyncio.sleep(0)
                    sum(range(100000))
                except Exception:
                    pass

        async def forever():
            await asyncio.gather(*(deaf() for _ in range(10)))

        def run(plan):
            try:
                {where}
            finally:
                print("stopped")

        soak.Plan.hard_end_s = 1
        soak.run = run
        sys.exit(soak.main(["--minutes", "1"]))
        """
    started_s = time.monotonic()
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (finished.returncode, finished.stdout) == (1, "stopped\n")
    # asyncio may tell of the tasks that it found as well.
    assert "soak: did not end within 1 s; its server is stopped" in finished.stderr.splitlines()
    assert time.monotonic() - started_s < 40
