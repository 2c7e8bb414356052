"""The pages of models that a real TorchServe lists."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
import requests

from deploy.gateway import management as listing
from deploy.models import model
from deploy.nodes.run.server import Server
from load import sandbox
from torchserve_client import Client, InvalidPayload, RetryPolicy, management
from torchserve_client.cli import main

PATIENT = RetryPolicy(attempts=40, statuses=frozenset({404, 503}))


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
        addresses = ["--url", server.settings.inference_url, "--management-url", server.settings.management_url]
        assert main([*addresses, "describe"]) == 0
        assert re.search(r"(?s)m1.*m2.*m3.*a/b: not described: Model not found: ", capsys.readouterr().out)
        with pytest.raises(InvalidPayload, match="must be 0 or more"):
            server.management.scale("m1", -1)
        server.management.scale(odd, 1)
        server.management.wait_ready(odd, 60)
        with sandbox.run_gateway([sandbox.make_node(server)]) as edge:
            assert Client(edge.http, retry=PATIENT).predict(odd, {"INPUT_1": [4]}) == {"OUTPUT_1": [8]}
