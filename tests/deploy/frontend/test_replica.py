"""A replica without Ray, in a process that has its archive's own handlers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.archives.archive import Recipe
from deploy.models import ROOT, ModelEntry

pytestmark = pytest.mark.builds

# It waits, and notes what it runs for. A number above 1000 finds no memory, and the sample neither if so it is told.
INFER = """
import os, pathlib, time

def infer(x):
    with open(os.environ["RAN"], "a") as ran:
        ran.write(f"{x.tolist()}\\n")
    time.sleep(0.2)
    if x[0] > 1000 or pathlib.Path(os.environ["RAN"] + ".full").exists():
        raise MemoryError
    return {"y": x * 2}
"""
PROGRAM = """
import asyncio, json, pathlib, sys, threading
from deploy.frontend import replica as module
from deploy.frontend.replica import Replica, Unhealthy, row_of
assert not [name for name in sys.modules if name.partition(".")[0] == "handlers"]

class Total:
    value = 0.0
    def add_or_update(self, value, labels):
        self.value += value

class Totals(dict):
    # Empty at first, as Ray's are.
    def get_metric(self, name, kind):
        return self.setdefault(name, Total())

async def main(folder, ran):
    totals = Totals()
    replica = Replica(folder, threads=1, gpu=None, metrics=totals)
    def ask(number):
        sent = {"content-type": "application/json"}
        return asyncio.create_task(replica.predict(sent, json.dumps({"x": number}).encode()))
    def count():
        return len(ran.read_text().splitlines())
    found = {"handlers": sys.modules["handlers"].__file__}
    found["first"] = (await ask(4))[:2]
    before = count()
    asked = [ask(number) for number in range(50)]
    await asyncio.sleep(0.05)
    for task in asked:
        task.cancel()
    ended = await asyncio.gather(*asked, return_exceptions=True)
    found["cancelled"] = sum(isinstance(each, asyncio.CancelledError) for each in ended)
    found["last"] = (await ask(5))[:2]
    found["ran"] = count() - before
    readers = []
    module.row_of = lambda *request: readers.append(threading.current_thread()) or row_of(*request)
    found["large"] = (await replica.predict({}, b"x" * (replica.max_body_bytes + 1)))[0]
    form = {"content-type": "multipart/form-data; boundary=b"}
    found["form"] = [each for each in await replica.predict(form, b"zz")][:2]
    found["on_loop"] = [each is threading.main_thread() for each in readers]
    asked = (("", ""), ("1.0", ""), ("1", ""), ("1", "/v2"), ("2", "/v2"))
    found["versions"] = [replica.is_version(*each) for each in asked]
    await replica.check()
    found["memory"] = (await ask(2000))[0]
    await replica.check()
    # A response in between proves nothing of the larger request.
    await ask(2000)
    await ask(3)
    pathlib.Path(str(ran) + ".full").touch()
    try:
        await replica.check()
    except Unhealthy as error:
        found["unhealthy"] = str(error)
    await replica.close()
    found["abandoned"] = totals["handler_abandoned_total"].value
    print(json.dumps(found, default=lambda value: value.decode()))

asyncio.run(main(sys.argv[1], pathlib.Path(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "infer.py").write_text(INFER)
    tensors = {
        "inputs": {"x": {"datatype": "INT64", "shape": [-1]}},
        "outputs": {"y": {"datatype": "INT64", "shape": [-1]}},
    }
    handler = {"max_batch_items": 1, **tensors}
    (folder / "model-config.yaml").write_text(yaml.safe_dump({"handler": handler}))
    (folder / "sample.json").write_text('{"x": 1}')
    store, ran = tmp_path_factory.mktemp("store"), folder / "ran"
    env = {**os.environ, "RAN": str(ran)}
    os.environ["RAN"] = str(ran)
    try:
        recipe = Recipe(
            ModelEntry("slow", "tensors", "1.0", folder, {"path": "infer.py"}), engine="auto", export_path=store
        )
        archive = recipe.build().path
    finally:
        del os.environ["RAN"]
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(archive), str(ran)]
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_replica_answers_with_its_archives_own_handlers(found: dict[str, Any]) -> None:
    assert not Path(found["handlers"]).is_relative_to(ROOT)
    assert (found["first"], found["last"]) == ([200, '{"y":8}'], [200, '{"y":10}'])


def test_requests_of_clients_that_left_do_not_run(found: dict[str, Any]) -> None:
    assert found["cancelled"] == found["abandoned"] == 50
    # One that ran as they left, and the last.
    assert found["ran"] <= 3


def test_request_that_cannot_be_a_row_is_refused(found: dict[str, Any]) -> None:
    assert found["large"] == 413
    # A thread reads the large one.
    assert found["on_loop"] == [False, True]
    status, body = found["form"]
    assert (status, json.loads(body)["type"]) == (400, "MalformedForm")


def test_version_is_torchserves_and_that_of_the_open_inference_protocol(found: dict[str, Any]) -> None:
    assert found["versions"] == [True, True, False, True, False]


def test_replica_is_replaced_if_its_own_sample_finds_no_memory(found: dict[str, Any]) -> None:
    assert (found["memory"], "memory" in found["unhealthy"]) == (507, True)
