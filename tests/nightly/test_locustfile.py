"""The locustfile among the examples, run by locust itself."""

import json
import os
import signal
import subprocess
import sys
import threading

from aiohttp import web

from deploy.models import ROOT
from tests.load.fake_server import serving


def test_locustfile_sends_the_image_to_the_model() -> None:
    bodies: set[tuple[str, bytes]] = set()
    counted = threading.Semaphore(0)

    async def answer(request: web.Request) -> web.Response:
        bodies.add((request.content_type, await request.read()))
        counted.release()
        return web.json_response({})

    call = ["-f", "examples/load/locustfile.py", "--headless", "-u", "2", "-r", "2", "--json", "--only-summary"]
    with serving(answer) as url:
        running = subprocess.Popen(
            [sys.executable, "-m", "locust", *call, "-H", url],
            cwd=ROOT,
            env={**os.environ, "MODEL": "m"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            # As many as it takes, however slow the machine: ended by count and not by time.
            has_sent = all(counted.acquire(timeout=60) for _ in range(20))
            running.send_signal(signal.SIGTERM)
            out, err = running.communicate(timeout=60)
        finally:
            running.kill()
    assert has_sent, err
    assert running.returncode == 0, err
    (statistics,) = json.loads(out)
    assert (statistics["name"], statistics["num_failures"]) == ("m", 0)
    assert statistics["num_requests"] >= 10
    assert bodies == {("image/jpeg", (ROOT / "examples" / "resnet-152" / "cat.jpg").read_bytes())}
