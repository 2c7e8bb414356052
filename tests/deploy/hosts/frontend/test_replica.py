"""A replica without Ray, in a process that has its archive's own handlers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.models import ROOT
from tests.deploy.hosts.serve.conftest import number_archive

pytestmark = pytest.mark.builds

# A number above 1000 finds no memory, and the sample neither if so it is told; 500 takes long.
INFER = """
import os, pathlib, threading, time

def infer(x):
    if x[0] == 500:
        os.environ["HELD"] = str(threading.current_thread() is threading.main_thread())
        time.sleep(0.5)
    if x[0] > 1000 or pathlib.Path(os.environ["FULL"]).exists():
        raise MemoryError
    return {"y": x * 2}
"""
PROGRAM = """
import asyncio, json, os, pathlib, sys, threading
from deploy.hosts.frontend.replica import Replica, Unhealthy
assert not [name for name in sys.modules if name.partition(".")[0] == "handlers"]

class Total:
    def add_or_update(self, value, labels):
        pass

class Totals(dict):
    # Empty at first, as Ray's are.
    def get_metric(self, name, kind):
        return self.setdefault(name, Total())

async def main(folder):
    replica = Replica(folder, threads=1, gpu=None, metrics=Totals())
    async def ask(number):
        sent = {"content-type": "application/json"}
        return [each for each in await replica.predict(sent, json.dumps({"x": number}).encode())][:2]
    found = {"handlers": sys.modules["handlers"].__file__, "answer": await ask(4)}
    readers = []
    from deploy.hosts.frontend import forms
    row_of = forms.row_of
    forms.row_of = lambda *request: readers.append(threading.current_thread()) or row_of(*request)
    await replica.predict({}, b"x" * (replica.max_body_bytes + 1))
    await replica.predict({}, b"x")
    found["on_loop"] = [each is threading.main_thread() for each in readers]
    found["versions"] = [replica.is_version(each) for each in ("", "1.0", "1", "2")]
    for _ in range(20):
        await ask(3)
    await ask(500)
    await ask(500)
    found["held"] = os.environ["HELD"]
    found["memory"] = await ask(2000)
    await replica.check()
    # A response in between proves nothing of the larger request.
    await ask(2000)
    await ask(3)
    pathlib.Path(os.environ["FULL"]).touch()
    try:
        await replica.check()
    except Unhealthy as error:
        found["unhealthy"] = str(error)
    await replica.close()
    print(json.dumps(found, default=lambda value: value.decode()))

asyncio.run(main(sys.argv[1]))
"""


def test_replica_has_own_handlers_and_ends_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FULL", str(tmp_path / "full"))
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(number_archive("own", INFER, tmp_path))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not Path(found["handlers"]).is_relative_to(ROOT)
    assert found["answer"] == [200, '{"y":8}']
    # A thread reads a large body.
    assert found["on_loop"] == [False, True]
    # The first micro-batch that turns slow has held the loop, and the next does not.
    assert found["held"] == "False"
    # TorchServe's form of a version, and that of the Open Inference Protocol.
    assert found["versions"] == [True, True, True, False]
    assert (found["memory"][0], "memory" in found["unhealthy"]) == (507, True)
