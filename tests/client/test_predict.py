"""`torchserve-client predict` and a server on a socket: a second run continues the first one."""

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
    """Responds with the input in capitals."""

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
        """Run the command and record its inputs in `asked`."""
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
    """Return the answers by name; assert that names are unique."""
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
    # In the folder itself: its own file is not an input.
    out = folder / "answers.jsonl"
    assert server.predict(folder, out) == 0
    assert sorted(server.asked) == sorted(f"text {name}" for name in names)
    assert answers(out) == {name: f"m TEXT {name.upper()}" for name in names}
    (folder / "new.txt").write_text("new")
    (folder / "3.txt").write_text("changed")
    for asked in (["changed", "new"], []):
        assert server.predict(folder, out) == 0
        assert sorted(server.asked) == asked


@pytest.mark.builds
def test_run_that_is_interrupted_or_killed_goes_on_from_its_last_answer(server: Server, tmp_path: Path) -> None:
    path, out = tmp_path / "texts", tmp_path / "out.jsonl"
    path.mkdir()
    # Seconds of work, so that the signal ends a run in its middle.
    for number in range(4000):
        (path / str(number)).write_text(f"text {number}")
    words = [*server.addresses, "predict", "m", str(path), "--in-flight", "1", "--out", str(out)]
    said: list[tuple[int, str]] = []
    for number in (signal.SIGINT, signal.SIGKILL):
        before = len(out.read_bytes().splitlines()) if out.exists() else 0
        # Background jobs of a shell ignore SIGINT, and so would the processes that they start.
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
    # An incomplete line is requested again.
    left = 4000 - out.read_bytes().count(b"\n")
    assert 0 < left <= 4000 - 40
    assert server.predict(path, out) == 0
    # Distinct inputs, since the server may read the killed run's last request only now.
    assert len(set(server.asked)) == left
    assert len(answers(out)) == 4000
