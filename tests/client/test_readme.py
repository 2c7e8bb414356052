"""The client's README: its programs run as they stand, and its tables leave nothing out."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import torchserve_client
from deploy.models import ROOT
from torchserve_client.cli import parser

README = (ROOT / "client" / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
INFERENCE, MANAGEMENT = "http://127.0.0.1:8080", "http://127.0.0.1:8081"
VECTOR = [0.25, -0.5]


class Embedding(BaseHTTPRequestHandler):
    """Both APIs of a server that has sentence-embedding with a batch_size of 8."""

    def do_GET(self) -> None:
        """Describe the model."""
        self._answer([{"modelName": "sentence-embedding", "batchSize": 8}])

    def do_POST(self) -> None:
        """Answer a text with a vector, and a list with one for each."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        is_list = self.headers["Content-Type"] == "application/json"
        self._answer({"predictions": [VECTOR] * len(json.loads(content)["instances"])} if is_list else VECTOR)

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Embedding) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("program", "printed"), list(zip(PROGRAMS, ["[0.25, -0.5]\n", "[0.25, -0.5]\n1000\n8\n"], strict=True))
)
def test_readme_program_runs(program: str, printed: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(program.replace(INFERENCE, url).replace(MANAGEMENT, url), {})  # noqa: S102 (the README's own words)
    assert capsys.readouterr().out == printed


def test_readme_names_every_error() -> None:
    errors = {
        name
        for name in torchserve_client.__all__
        if isinstance(getattr(torchserve_client, name), type)
        and issubclass(getattr(torchserve_client, name), torchserve_client.ClientError)
    }
    assert errors <= set(re.findall(r"`(\w+)`", README))


def test_readme_names_every_command() -> None:
    commands = set(re.findall(r"^\| `torchserve-client ([\w-]+)", README, re.MULTILINE))
    offered = {line.split()[0] for line in parser().format_help().splitlines() if re.match(r" {4}\w", line)}
    assert commands == offered
