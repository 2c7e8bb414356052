"""`torchserve-client predict` against a server on a socket: what a second run makes of what the first one left."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.http_server import serving
from tests.waiting import until
from torchserve_client.cli import main


class Server:
    """Answers with what it was asked, in capitals."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.url = ""

    def __call__(self, path: str, content_type: str, body: bytes) -> Any:
        model = path.rpartition("/")[2]
        if path.startswith("/models/"):
            return [{"batchSize": 1}]
        if content_type == "application/json":
            texts = json.loads(body)["instances"]
            self.asked += texts
            return {"predictions": [f"{model} {text.upper()}" for text in texts]}
        self.asked.append(body.decode())
        return f"{model} {body.decode().upper()}"

    def predict(self, path: Path, out: Path, *options: str, model: str = "m") -> int:
        """Run the command; what it asks for is in `asked`, in some order."""
        self.asked.clear()
        return main([*self.addresses, "predict", model, str(path), "--out", str(out), *options])

    @property
    def addresses(self) -> list[str]:
        return ["--url", self.url, "--management-url", self.url]


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with serving(made) as made.url:
        yield made


def answers(out: Path) -> dict[str, Any]:
    """Name -> answer of every line; no name stands there twice."""
    lines = [json.loads(line) for line in out.read_bytes().splitlines()]
    found = {line["input"]: line.get("answer", "error") for line in lines}
    assert len(found) == len(lines)
    return found


def test_second_run_asks_for_what_is_new_or_changed_alone(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "below").mkdir(parents=True)
    names = [*(f"{number}.txt" for number in range(9)), "below/1.txt"]
    for name in names:
        (folder / name).write_text(f"text {name}")
    # In the folder itself, where answers are no inputs.
    out = folder / "answers.jsonl"
    assert server.predict(folder, out) == 0
    assert sorted(server.asked) == sorted(f"text {name}" for name in names)
    assert answers(out) == {name: f"m TEXT {name.upper()}" for name in names}
    (folder / "new.txt").write_text("new")
    (folder / "3.txt").write_text("changed")
    for asked in (["changed", "new"], []):
        assert server.predict(folder, out) == 0
        assert sorted(server.asked) == asked


def test_run_that_is_interrupted_or_killed_goes_on_from_its_last_answer(server: Server, tmp_path: Path) -> None:
    path, out = tmp_path / "texts", tmp_path / "out.jsonl"
    path.mkdir()
    # Seconds of work, so that a run ends in its middle.
    for number in range(4000):
        (path / str(number)).write_text(f"text {number}")
    words = [*server.addresses, "predict", "m", str(path), "--in-flight", "1", "--out", str(out)]
    said: list[tuple[int, str]] = []
    for number in (signal.SIGINT, signal.SIGKILL):
        before = len(out.read_bytes().splitlines()) if out.exists() else 0
        # A process of its own; a shell's background job ignores SIGINT, and so would every process below it.
        command = [sys.executable, "-m", "torchserve_client", *words]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        until(lambda before=before: out.exists() and out.read_bytes().count(b"\n") >= before + 20, every_s=0.01)  # type: ignore[misc]
        running.send_signal(number)
        _, error = running.communicate(timeout=60)
        said.append((running.returncode, error))
    told = f"torchserve-client: interrupted; {out} contains the answers so far, run the command again to resume\n"
    assert said[0] == (130, told)
    assert said[1][0] == -signal.SIGKILL
    # A line that was cut off by the kill is asked for again.
    left = 4000 - out.read_bytes().count(b"\n")
    assert 0 < left <= 4000 - 40
    assert server.predict(path, out) == 0
    # Distinct ones: what the killed run sent last may be read only now.
    assert len(set(server.asked)) == left
    assert len(answers(out)) == 4000
