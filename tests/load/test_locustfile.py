"""The locustfile among the examples, run by locust itself."""

import json
import os
import subprocess
import sys

import pytest
from aiohttp import web

from deploy.models import ROOT
from tests.load.fake_server import serving

pytestmark = pytest.mark.clock


def test_locustfile_sends_the_image_to_the_model() -> None:
    bodies: set[tuple[str, bytes]] = set()

    async def answer(request: web.Request) -> web.Response:
        bodies.add((request.content_type, await request.read()))
        return web.json_response({})

    call = [
        "-f",
        "examples/load/locustfile.py",
        "--headless",
        "-u",
        "2",
        "-r",
        "2",
        "-t",
        "1s",
        "--json",
        "--only-summary",
    ]
    with serving(answer) as url:
        finished = subprocess.run(
            [sys.executable, "-m", "locust", *call, "-H", url],
            cwd=ROOT,
            env={**os.environ, "MODEL": "m"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert finished.returncode == 0, finished.stderr
    (statistics,) = json.loads(finished.stdout)
    assert (statistics["name"], statistics["num_failures"]) == ("m", 0)
    assert statistics["num_requests"] > 10
    assert bodies == {("image/jpeg", (ROOT / "examples" / "resnet-152" / "cat.jpg").read_bytes())}
