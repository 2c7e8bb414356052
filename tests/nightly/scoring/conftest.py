"""Ray's environment, and one Ray for the tests of this folder: a process of .extras/ray that scores what it is told."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.models import ROOT

PYTHON = ROOT / ".extras" / "ray" / "bin" / "python"
START_S = 300


class Ray:
    """Scores by orders: tests/nightly/scoring/program.py."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def rows(self, **order: Any) -> list[dict[str, Any]]:
        """The rows of a scored Dataset; see the program."""
        answer = self.ask(**order)
        assert "failed" not in answer, answer["failed"]
        rows: list[dict[str, Any]] = answer["rows"]
        return rows

    def ask(self, **order: Any) -> dict[str, Any]:
        """One order, {"rows": ...} or {"failed": its words}."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith('{"'):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise AssertionError(f"Ray's program ended with {self._process.wait(60)}")


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    """A Ray of two cores, in the environment that the project's script builds."""
    subprocess.run([ROOT / "deploy" / "extras" / "environment.sh", "ray"], cwd=ROOT, check=True, timeout=START_S)
    home = tmp_path_factory.mktemp("ray")
    environment = {
        **os.environ,
        # Ray keeps a token in the home folder, and its workers find the project here.
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with (home / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [PYTHON, "-W", "ignore", "-m", "tests.nightly.scoring.program"],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        yield Ray(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


def inputs(folder: Path, bodies: list[bytes]) -> list[str]:
    """Files, one for each body."""
    paths = []
    for number, body in enumerate(bodies):
        path = folder / f"{number:03}"
        path.write_bytes(body)
        paths.append(str(path))
    return paths
