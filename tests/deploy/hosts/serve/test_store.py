"""A folder of archives: each model is loaded at its first request, within a limit of memory."""

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import psutil
import pytest
import requests
from tritonclient import grpc as grpcclient
from tritonclient import http as httpclient
from tritonclient.utils import InferenceServerException

from deploy.hosts.frontend.http import Rejected
from deploy.hosts.serve import __main__ as program
from deploy.hosts.serve import store as stores
from deploy.hosts.serve.store import Store, Use
from deploy.protocol.errors import RequestError
from tests.deploy.hosts.serve.conftest import number_archive
from tests.hosts import Host, serving
from tests.tables import table
from tests.waiting import PATIENCE_S

MIB = 1 << 20
INFER = """
import numpy as np

BLOCK = np.ones({mib} << 17)

def infer(x):
    return {{"y": x * {factor} * int(BLOCK[0])}}
"""


class Replica:
    version = "1.0"

    def __init__(self, archive: Path) -> None:
        self.name, self.unloaded, self.close = archive.stem, False, AsyncMock()

    def unload(self) -> None:
        self.unloaded = True


class Loads:
    """Loads of archives that wait for a test."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        for name in ("a", "b", "c", "d"):
            (folder / f"{name}.mar").touch()
        self.may_load, self.loaded = threading.Event(), list[str]()
        self.may_load.set()
        given = {"most_bytes": None, "load_s": PATIENCE_S, "may_manage": True, **limits}
        self.store = Store(folder, self._load, **given)

    def _load(self, archive: Path, _: list[Path]) -> Replica:
        assert archive.stem == "d" or self.may_load.wait(PATIENCE_S)
        self.loaded.append(archive.stem)
        if archive.stem == "c":
            raise RuntimeError("no weights\nat all")
        return Replica(archive)

    async def ask(self, name: str) -> str:
        model = self.store.find(name)
        assert model is not None
        try:
            async with Use(self.store, model) as replica:
                return str(replica.name)
        except Rejected as rejected:
            (rejection,) = rejected.args
            return f"{rejection.status} {rejection.message} {rejection.headers['Retry-After']}"


def test_model_is_loaded_once_for_all_that_wait_and_a_load_goes_on_if_they_leave(tmp_path: Path) -> None:
    async def run() -> None:
        loads = Loads(tmp_path, load_s=0.05)
        loads.may_load.clear()
        late = await asyncio.gather(*(loads.ask("a") for _ in range(3)))
        assert {*late} == {"503 a is loading; wait, or try again. 1"}
        loads.may_load.set()
        model = loads.store.find("a")
        assert model is not None and model.loading is not None
        await model.loading
        assert (await loads.ask("a"), loads.loaded) == ("a", ["a"])

    asyncio.run(run())


def test_model_that_loads_for_ever_leaves_others_their_turn(tmp_path: Path) -> None:
    async def run() -> None:
        loads = Loads(tmp_path, load_s=1.2)  # longer than a stall of the machine
        loads.may_load.clear()
        assert await loads.ask("a") == "503 a is loading; wait, or try again. 1"
        await loads.store.manage("load", "d", {})
        assert (await loads.ask("d"), loads.loaded) == ("d", ["d"])
        with pytest.raises(RequestError, match="'a' is still loading"):
            await loads.store.manage("load", "a", {})
        loads.may_load.set()

    asyncio.run(run())


def test_model_that_does_not_load_is_an_error_of_its_own_requests_and_is_tried_again_later(tmp_path: Path) -> None:
    async def run() -> None:
        loads = Loads(tmp_path)
        words = "503 c does not load: RuntimeError: no weights 30"
        assert await asyncio.gather(*map(loads.ask, "caca")) == [words, "a", words, "a"]
        assert loads.loaded.count("c") == 1
        # Another archive is tried at once.
        time.sleep(0.01)
        (tmp_path / "c.mar").touch()
        assert (await loads.ask("c"), loads.loaded.count("c")) == (words, 2)

    asyncio.run(run())


def test_least_recently_used_idle_model_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        loads = Loads(tmp_path, most_bytes=250)
        models = {name: loads.store.find(name) for name in "abd"}
        monkeypatch.setattr(stores, "resident", lambda: 100 * sum(each.replica is not None for each in loads.store))
        monkeypatch.setattr(stores, "size", lambda _: 100)
        for name in ("a", "b", "a"):
            assert await loads.ask(name) == name
        replica = models["b"].replica  # type: ignore[union-attr]
        assert await loads.ask("d") == "d"
        assert (replica.unloaded, replica.close.await_count) == (True, 1)
        assert [each["name"] for each in loads.store.index(is_ready=True)] == ["a", "d"]
        # A model with a request is not idle.
        async with Use(loads.store, models["a"]):  # type: ignore[arg-type]
            assert await loads.ask("b") == "b"
        assert [each["name"] for each in loads.store.index(is_ready=True)] == ["a", "b"]

    asyncio.run(run())


def test_model_that_a_client_unloads_ends_after_its_requests_and_stays_out(tmp_path: Path) -> None:
    async def run() -> None:
        loads = Loads(tmp_path)
        model = loads.store.find("a")
        assert model is not None
        async with Use(loads.store, model) as replica:
            unloading = asyncio.create_task(loads.store.manage("unload", "a", {}))
            await asyncio.sleep(0)
            assert await loads.ask("a") == "503 a is unloaded 30"
            assert not replica.unloaded
        await unloading
        assert replica.unloaded and await loads.ask("a") == "503 a is unloaded 30"
        await loads.store.manage("load", "a", {})
        assert (await loads.ask("a"), loads.loaded) == ("a", ["a", "a"])

    asyncio.run(run())


@table(
    (["a.mar", "--store", "."], "either archives or --store FOLDER"),
    (["--store", ".", "--processes", "2"], "--store serves in one process"),
    (["--store", "missing"], "no folder missing"),
    (["--most-memory", "8GiB"], "--most-memory needs --store"),
)
def test_options_that_do_not_fit_are_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(words) == 1
    assert line in capsys.readouterr().err


@table(("8GiB", 8 << 30), ("512 MiB", 512 << 20), ("1.5g", 3 << 29), ("4096", 4096), ("2TB", 2 << 40))
def test_size_is_a_number_with_a_unit(text: str, size: int) -> None:
    assert program._bytes(text) == size


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    for name, mib, factor in (("one", 200, 1), ("two", 200, 2), ("three", 1, 3)):
        number_archive(name, INFER.format(mib=mib, factor=factor), folder)
    (folder / "store" / "broken.mar").write_text("no archive")
    return folder / "store"


@pytest.fixture
def host(folder: Path, tmp_path: Path) -> Iterator[Host]:
    words = "--store", folder, "--most-memory", "400MiB"
    with serving(None, *words, folder=tmp_path, management=True, drain_s=5, notice_s=0) as host:
        yield host


def ask(host: Host, name: str) -> tuple[int, Any]:
    answer = requests.post(f"{host.url}/predictions/{name}", json={"x": 1}, timeout=PATIENCE_S)
    return answer.status_code, answer.json().get("y")


def resident_mib(host: Host) -> float:
    return float(psutil.Process(host.process.pid).memory_info().rss / MIB)


@pytest.mark.builds
def test_folder_is_served_within_its_memory_and_managed_by_tritons_clients(host: Host) -> None:
    index = requests.post(f"{host.url}/v2/repository/index", timeout=9).json()
    states = {each["name"]: each["state"] for each in index}
    assert states == dict.fromkeys(("broken", "one", "three", "two"), "UNAVAILABLE")
    assert requests.get(f"{host.url}/v2/models/one/ready", timeout=9).status_code == 503
    asked = [(name, ask(host, name)) for name in ("one", "three", "two", "broken", "one", "other")]
    assert asked == [
        *(("one", (200, 1)), ("three", (200, 3)), ("two", (200, 2)), ("broken", (503, None)), ("one", (200, 1))),
        ("other", (404, None)),
    ]
    assert 200 < resident_mib(host) < 400
    listed = requests.get(f"{host.url}/models", timeout=9).json()["models"]
    assert {each["modelName"]: each["state"] for each in listed} == {
        **dict.fromkeys(("broken", "three", "two"), "UNAVAILABLE"),
        "one": "READY",
    }
    words = [sys.executable, "-m", "torchserve_client", "--url", host.url, "--management-url", host.url, "describe"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert [re.sub(" +", " ", line) for line in shown.splitlines() if line.startswith(("one", "two"))] == [
        "one 1.0 (default) 1 0 ms 1 READY 0",
        "two 1.0 (default) 1 0 ms UNAVAILABLE 0",
    ]
    for client, kind in (
        (httpclient.InferenceServerClient(host.url.removeprefix("http://")), httpclient),
        (grpcclient.InferenceServerClient(host.grpc), grpcclient),
    ):
        client.unload_model("one")
        assert resident_mib(host) < 200 and not client.is_model_ready("one")
        number = kind.InferInput("x", [1], "INT64")
        number.set_data_from_numpy(np.array([5]))
        with pytest.raises(InferenceServerException, match="one is unloaded"):
            client.infer("one", [number])
        client.load_model("one")
        assert client.is_model_ready("one") and client.infer("one", [number]).as_numpy("y").tolist() == [5]
        for name, reason in (("broken", "failed to load 'broken': broken does not load"), ("other", "unknown model")):
            with pytest.raises(InferenceServerException, match=reason):
                client.load_model(name)
        with pytest.raises(InferenceServerException, match="not supported"):
            client.load_model("one", config="{}")
        with suppress(AttributeError):
            client.close()


@pytest.mark.builds
def test_clients_may_not_manage_models_unless_the_owner_allows_it(folder: Path, tmp_path: Path) -> None:
    with serving(None, "--store", folder, folder=tmp_path) as host:
        for action in ("load", "unload"):
            answer = requests.post(f"{host.url}/v2/repository/models/three/{action}", timeout=9)
            assert answer.status_code == 400 and "management: true" in answer.json()["error"]
        assert ask(host, "three") == (200, 3)
