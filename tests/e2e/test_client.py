"""client/ against a process of deploy.serve, and the pages of models against a real TorchServe."""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import requests

from deploy import sandbox
from deploy.gateway import management as listing
from deploy.models import model
from deploy.run.server import Server
from tests.e2e.conftest import MOBILENET
from tests.hosts import run_hosts
from tests.photographs import path, photograph
from torchserve_client import ChunkingClient, Client, InvalidPayload, ItemFailed, Rejected, RetryPolicy, management
from torchserve_client.cli import main

PATIENT = RetryPolicy(attempts=40, statuses=frozenset({404, 503}))


@pytest.fixture
def client(model_store: Path) -> Iterator[Client]:
    with run_hosts(model_store / f"{MOBILENET}.mar") as (host,), Client(host.url) as connected:
        yield connected


def of(url: str, management_url: str, *arguments: str) -> list[str]:
    return ["--url", url, "--management-url", management_url, *arguments]


def top(answer: dict[str, float]) -> str:
    return max(answer, key=lambda label: answer[label])


def test_payloads_of_every_kind_get_their_answers_and_errors_what_the_server_said(client: Client) -> None:
    name, body = MOBILENET, photograph("chelsea")
    answers = [
        client.predict(name, body),
        client.predict(name, path("chelsea")),
        client.predict(name, body, top_k=2),
        client.predict(name, {"b64": body, "top_k": 2}),
        client.predict(name, body, version="1.0"),
        *client.predict(name, [body, path("chelsea"), {"b64": body}], top_k=1),
    ]
    assert [top(answer) for answer in answers] == ["Egyptian cat"] * 8
    assert [len(answer) for answer in answers] == [5, 5, 2, 2, 5, 1, 1, 1]
    tensors = client.predict(name, np.array([body, photograph("coffee")], object), top_k=1)
    assert tensors["label"].tolist() == [[b"Egyptian cat"], [b"espresso"]]
    for model_name, status, kind in ((name, 415, "UnsupportedMedia"), ("nobody", 404, "ModelNotFoundException")):
        with pytest.raises(Rejected) as raised:
            client.predict(model_name, b"no photograph")
        assert (raised.value.status, raised.value.type) == (status, kind)
    good, bad = client.predict(name, [photograph("coffee"), b"no photograph"])
    assert top(good) == "espresso"
    assert isinstance(bad, ItemFailed)
    assert [item.status for item in client.predict(name, [b"none", b"of these"])] == [415, 415]


def test_arrays_are_predicted_in_chunks(
    archive: Callable[..., str], model_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "batch2"
    five = np.arange(5, dtype=np.int32).reshape(5, 1)
    with run_hosts(model_store / archive(name)) as (host,), sandbox.run_gateway([host.node("host")]) as gateway:
        for address in (host.url, gateway.http):
            # The gateway may not have seen yet that the model is there.
            with Client(address, retry=PATIENT) as asking, ChunkingClient(asking, 2) as chunking:
                found = [future.result()["OUTPUT_1"].tolist() for future in chunking.submit(name, {"INPUT_1": five})]
                assert found == [[[0], [2]], [[4], [6]], [[8]]]
                with pytest.raises(Rejected, match="batch-size must be <= 2"):
                    asking.predict(name, {"INPUT_1": five[:4]})
        capsys.readouterr()
        assert main(of(host.url, host.url, "describe", name)) == 0
    shown = capsys.readouterr().out
    assert ("max_batch_size 2" in shown, "INPUT_1" in shown) == (True, True)


def test_all_pages_of_models_are_read_and_a_name_that_no_path_finds_breaks_nothing(
    model_store: Path, archive: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (management, listing):
        monkeypatch.setattr(module, "PAGE_MODELS", 2)
        monkeypatch.setattr(module, "OVERLAP", 1)
    file, odd = archive(model("batch2")), "हि.모+1:z@~_-"

    async def seen(server: Server) -> set[str]:
        async with aiohttp.ClientSession() as session:
            return {name for name, _ in (await listing.list_models(session, sandbox.make_node(server)))[0]}

    # A separate server: nothing can unregister `a/b`.
    with sandbox.run_server(model_store) as server:
        models, names = f"{server.settings.management_url}/models", {"a/b", "m1", "m2", "m3", odd}
        for name in names:
            requests.post(models, params={"url": file, "model_name": name}, timeout=60).raise_for_status()
        listed = [each["modelName"] for each in requests.get(models, timeout=60).json()["models"]]
        assert (server.management.models(), set(listed)) == (listed, names)
        assert {name for name, _ in server.management.all_versions()} == asyncio.run(seen(server)) == names - {"a/b"}
        assert main(of(server.settings.inference_url, server.settings.management_url, "describe")) == 0
        assert re.search(r"(?s)m1.*m2.*m3.*a/b: not described: Model not found: ", capsys.readouterr().out)
        with pytest.raises(InvalidPayload, match="must be 0 or more"):
            server.management.scale("m1", -1)
        server.management.scale(odd, 1)
        server.management.wait_ready(odd, 60)
        with sandbox.run_gateway([sandbox.make_node(server)]) as edge:
            assert Client(edge.http, retry=PATIENT).predict(odd, {"INPUT_1": [4]}) == {"OUTPUT_1": [8]}
