"""A live model's next version, under load: no request fails, and what does not come up changes nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.nodes.run.server import Server
from tests.e2e.clients import Clients, assert_all_answered
from tests.e2e.conftest import ADAPTIVE, Make, Registrations, url
from tests.photographs import photograph
from torchserve_client import Client, Nodes
from torchserve_client.cli import main
from torchserve_client.files import remove
from torchserve_client.rollout import Registration, Rollout

PHOTOGRAPHS = [photograph("chelsea")]
# Seconds between the requests of a client: the new version's worker has something of the cores that it starts on.
INTERVAL_S = 0.2
# As a batch that takes long, put behind the handler's own methods.
SLOW = """
    def forward(self, inputs, items):
        import time
        time.sleep(0.4)
        return super().forward(inputs, items)
"""


@pytest.fixture
def rollout(server: Server, model_store: Path, registrations: Registrations) -> Iterator[Callable[..., list[str]]]:
    """Roll out and return the lines that it says; copies that it left in the model store are removed."""

    def run(name: str, **wanted: Any) -> list[str]:
        said: list[str] = []
        with Client(server.settings.inference_url) as client:
            nodes = Nodes({"node": server.management}, inference={"node": client})
            Rollout(nodes, model_store, logs=server.logs, report=said.append).run(name, Registration(**wanted))
        return said

    yield run
    registrations.clear()
    for copy in model_store.glob("*@*"):
        remove(copy)


def test_new_batch_parameters_take_over_while_requests_wait_for_the_old_version(
    server: Server, model_store: Path, serve: Make, variant: Make, rollout: Callable[..., list[str]]
) -> None:
    name = variant("mobilenet-slow")
    module = model_store / name / "image_classification.py"
    module.write_text(module.read_text() + SLOW)
    serve(archive=name, name=name, batch_size=2, max_batch_delay_ms=5)
    # Two a batch of 0.4 s: a backlog of some five seconds, which killing the old worker would have lost.
    with Clients(url(server, name), 24, PHOTOGRAPHS) as clients:
        clients.wait_for(4)
        said = rollout(name, batch_size=16)
        clients.wait_for(24)
    assert_all_answered(clients)
    registered = "1.0-r2 is registered, batch_size 2 -> 16, max_batch_delay 5 ms, 1 worker"
    steps = ("1.0-r2 is ready", "1.0-r2 is the default", "1.0 has answered everything", "1.0 is unregistered")
    assert said == [f"{name}: version {step}" for step in (registered, *steps)]
    assert server.management.versions(name) == ["1.0-r2"]
    described = server.management.describe(name)
    # Parameters that the command does not name stay unchanged.
    assert (described["batchSize"], described["maxBatchDelay"], described["minWorkers"]) == (16, 5, 1)
    assert {path.name for path in model_store.glob(f"{name}*")} == {name, f"{name}@1.0-r2"}


def test_adaptive_version_is_retired_when_its_worker_has_answered_everything(
    server: Server, serve: Make, variant: Make, rollout: Callable[..., list[str]]
) -> None:
    handler = {"scheduling": {"mode": "adaptive"}}
    name = variant("mobilenet-two", handler=handler, **{**ADAPTIVE, "responseTimeout": 60})
    serve(archive=name, name=name)
    with Clients(url(server, name), 4, PHOTOGRAPHS, interval_s=INTERVAL_S) as clients:
        clients.wait_for(8)
        said = rollout(name, batch_size=4)
        clients.wait_for(8)
    assert_all_answered(clients)
    assert said[3] == f"{name}: version 1.0 has answered everything"


def test_version_that_does_not_come_up_is_taken_back_and_the_old_one_never_stops(
    server: Server, model_store: Path, serve: Make, variant: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    name = serve(archive=variant("mobilenet-edited"), name="mobilenet-edited")
    # The copy that is made for the new version has it; the worker that serves has read its own.
    config = model_store / name / "model-config.yaml"
    config.write_text(config.read_text().replace("crop_size", "crop_sise"))
    arguments = ["rollout", name, "--batch-size", "2", "--model-store", str(model_store), "--logs", str(server.logs)]
    with Clients(url(server, name), 4, PHOTOGRAPHS, interval_s=INTERVAL_S) as clients:
        assert main(["--management-url", server.settings.management_url, *arguments]) == 1
        clients.wait_for(4)
    assert_all_answered(clients)
    error = capsys.readouterr().err
    assert error.startswith(f"torchserve-client: {name}: Cannot load {name}: InvalidConfig: handler: crop_sise:")
    assert error.endswith("; version 1.0 continues to serve\n")
    assert (server.management.versions(name), server.management.is_ready(name)) == (["1.0"], True)
    assert list(model_store.glob("*@*")) == []
