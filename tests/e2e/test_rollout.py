"""A live model's next version, under load."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.server import Server
from tests.e2e.conftest import MOBILENET, Registrations, send
from tests.photographs import photograph
from torchserve_client import RolloutFailed, archives
from torchserve_client.cli import main
from torchserve_client.rollout import Rollout, Wanted

# As a batch that takes long, put behind the handler's own methods.
SLOW = """
    def inference(self, batch):
        import time
        time.sleep(0.4)
        super().inference(batch)
"""


# Seconds between a client's answer and its next request: several are always in flight, and the new version's worker has
# something of the cores that it starts on.
PAUSE_S = 0.1


class Load:
    """Clients that send one request after the other and never try twice; leaving the block stops and counts them."""

    def __init__(self, server: Server, name: str, clients: int, pause_s: float = PAUSE_S) -> None:
        self.statuses: Counter[int] = Counter()
        self._server, self._name, self._pause_s = server, name, pause_s
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._client) for _ in range(clients)]

    def _client(self) -> None:
        while not self._is_over.is_set():
            # An exception here (no answer, a cut connection) fails the thread, and with it the test.
            self.statuses[send(self._server, self._name, photograph("chelsea")).status] += 1
            self._is_over.wait(self._pause_s)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()


@pytest.fixture
def rollout(server: Server, model_store: Path, registrations: Registrations) -> Iterator[Callable[..., list[str]]]:
    """Roll out and return what it said; copies that it left in the model store are removed."""

    def run(name: str, **wanted: int | str) -> list[str]:
        said: list[str] = []
        Rollout(server.management, model_store, server.logs, say=said.append).run(name, Wanted(**wanted))  # type: ignore[arg-type]
        return said

    yield run
    registrations.clear()
    for copy in model_store.glob("*@*"):
        archives.remove(copy)


@pytest.fixture
def release(model_store: Path, variant: Callable[..., str]) -> Callable[..., str]:
    """A folder of the model store that holds another version of mobilenet-v2."""

    def make(name: str, version: str, **config: object) -> str:
        variant(name, handler=config)
        path = model_store / name / "MAR-INF" / "MANIFEST.json"
        manifest = json.loads(path.read_text())
        manifest["model"].update(modelName=MOBILENET, modelVersion=version)
        path.write_text(json.dumps(manifest))
        return name

    return make


def test_new_batch_parameters_take_over_under_load_and_no_request_fails(
    server: Server, model_store: Path, serve: Callable[..., str], rollout: Callable[..., list[str]]
) -> None:
    name = serve()
    with Load(server, name, 16) as load:
        said = rollout(name, batch_size=16, max_batch_delay_ms=5)
        answered = sum(load.statuses.values())
        rollout(name, batch_size=4)
    assert set(load.statuses) == {200}
    assert sum(load.statuses.values()) > answered > 16
    assert said == [
        "mobilenet-v2: version 1.0-r2 is registered, batch_size 16, max_batch_delay 5 ms, 1 worker",
        "mobilenet-v2: version 1.0-r2 is ready",
        "mobilenet-v2: version 1.0-r2 is the default",
        "mobilenet-v2: version 1.0 has answered everything",
        "mobilenet-v2: version 1.0 is unregistered",
    ]
    assert server.management.versions(name) == ["1.0-r3"]
    described = server.management.describe(name)
    # What was not asked for stays as it was.
    assert (described["batchSize"], described["maxBatchDelay"], described["minWorkers"]) == (4, 5, 1)
    # The copy that served in between is gone, the archive itself is not.
    assert {path.name for path in model_store.glob("mobilenet-v2*.mar")} == {
        "mobilenet-v2.mar",
        "mobilenet-v2@1.0-r3.mar",
    }


def test_requests_that_wait_for_the_old_version_and_its_running_batch_are_answered(
    server: Server,
    model_store: Path,
    serve: Callable[..., str],
    variant: Callable[..., str],
    rollout: Callable[..., list[str]],
) -> None:
    name = variant("mobilenet-slow")
    module = model_store / name / "image_classification.py"
    module.write_text(module.read_text() + SLOW)
    serve(archive=name, name=name, batch_size=2, max_batch_delay_ms=1)
    # Two a batch of 0.4 s: a backlog of some five seconds, which killing the old worker would have lost.
    with Load(server, name, 24, pause_s=0) as load:
        rollout(name, batch_size=8)
    assert set(load.statuses) == {200}
    assert server.management.versions(name) == ["1.0-r2"]


def test_old_version_of_several_workers_is_given_its_response_timeout(
    server: Server, serve: Callable[..., str], variant: Callable[..., str], rollout: Callable[..., list[str]]
) -> None:
    name = variant("mobilenet-two", responseTimeout=4)
    serve(archive=name, name=name, workers=2)
    with Load(server, name, 8) as load:
        said = rollout(name, initial_workers=1)
    assert set(load.statuses) == {200}
    assert said[3] == "mobilenet-two: version 1.0 has an empty queue; its last batches have 4 s"


def test_new_archive_takes_over_under_load(
    server: Server, serve: Callable[..., str], release: Callable[..., str], rollout: Callable[..., list[str]]
) -> None:
    name = serve()
    with Load(server, name, 8) as load:
        rollout(name, archive=release("mobilenet-next", "2.0", top_k=1))
    assert set(load.statuses) == {200}
    assert server.management.versions(name) == ["2.0"]
    assert len(send(server, name, photograph("chelsea")).body) == 1


def test_new_version_that_does_not_come_up_is_taken_back_and_the_old_one_never_stops(
    server: Server,
    model_store: Path,
    serve: Callable[..., str],
    release: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = serve()
    archive = release("mobilenet-broken", "2.0", resize_sise=256)
    arguments = ["rollout", name, "--url", archive, "--model-store", str(model_store), "--logs", str(server.logs)]
    with Load(server, name, 8) as load:
        code = main(["--management", server.settings.management_url, *arguments])
    assert code == 1
    error = capsys.readouterr().err
    assert error.startswith("client: mobilenet-v2: Cannot load mobilenet-v2: InvalidConfig: handler: resize_sise:")
    assert error.endswith("; version 1.0 serves on\n")
    assert set(load.statuses) == {200}
    assert server.management.versions(name) == ["1.0"]
    assert server.management.is_ready(name)


def test_copy_that_does_not_come_up_is_removed_from_the_model_store(
    server: Server,
    model_store: Path,
    serve: Callable[..., str],
    variant: Callable[..., str],
    rollout: Callable[..., list[str]],
) -> None:
    name = variant("mobilenet-edited")
    serve(archive=name, name=name)
    config = model_store / name / "model-config.yaml"
    config.write_text(config.read_text().replace("crop_size", "crop_sise"))
    with pytest.raises(RolloutFailed, match=r"version 1\.0 serves on"):
        rollout(name, batch_size=2)
    assert list(model_store.glob("*@*")) == []
    assert send(server, name, photograph("chelsea")).status == 200


def test_archive_of_another_model_or_of_a_version_that_serves_is_refused(
    server: Server, serve: Callable[..., str], release: Callable[..., str], rollout: Callable[..., list[str]]
) -> None:
    name = serve()
    with pytest.raises(RolloutFailed, match=r"resnet-152\.mar holds resnet-152, not mobilenet-v2"):
        rollout(name, archive="resnet-152.mar")
    with pytest.raises(RolloutFailed, match=r"version 1\.0 is registered already; give mobilenet-same another"):
        rollout(name, archive=release("mobilenet-same", "1.0"))
    assert server.management.versions(name) == ["1.0"]
