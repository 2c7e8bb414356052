"""The gateway in front of a real TorchServe: what it finds by itself, what it outlives, and what it loses: nothing."""

from pathlib import Path
from typing import Any

import pytest
import requests

from deploy.nodes.run.server import Server
from load.sandbox import Sandbox
from tests.e2e.clients import Clients
from tests.e2e.conftest import MOBILENET, Make, metrics
from tests.e2e.machine import control_of
from tests.photographs import photograph
from tests.waiting import until
from torchserve_client.cli import main as torchserve_client
from torchserve_client.files import remove

PHOTOGRAPH = photograph("coffee")
# Of a part of a form.
END = b"\r\n\r\nx\r\n--b--\r\n"


def get(gateway: Sandbox, path: str = "") -> requests.Response:
    return requests.get(f"{gateway.http}/v2/models/{MOBILENET}{path}", timeout=30)


def predict(gateway: Sandbox) -> int:
    return requests.put(f"{gateway.http}/predictions/{MOBILENET}", data=PHOTOGRAPH, timeout=60).status_code


@pytest.fixture
def served(serve: Make, gateway: Sandbox) -> Sandbox:
    """The gateway, with mobilenet-v2 READY behind it and described; a batch waits for half a second."""
    serve(max_batch_delay_ms=500)
    until(lambda: get(gateway, "/ready").ok and get(gateway).json()["inputs"])
    until(lambda: predict(gateway) == 200)
    return gateway


def test_torchserves_own_errors_have_our_form(served: Sandbox) -> None:
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    part = b'--b\r\nContent-Disposition: form-data; name="%s"\r\nContent-Type: text/plain; charset=%s'
    for body, headers, expected in (
        (part % (b"", b"utf-8") + END, form, (400, "MalformedForm")),
        (part % (b"data", b"nonsense") + END, form, (400, "MalformedForm")),
        (bytes(9 << 20), {}, (413, "BodyTooLarge")),
    ):
        answer = requests.post(f"{served.http}/predictions/{MOBILENET}", data=body, headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["type"]) == expected


def test_control_process_that_is_killed_leaves_inference_and_remembers_counts(served: Sandbox, server: Server) -> None:
    def statistics() -> Any:
        (found,) = get(served, "/stats").json()["model_stats"]
        return found

    def succeeded() -> int:
        return int(statistics()["inference_stats"]["success"]["count"])

    def counted() -> float:
        wanted = (f'"{MOBILENET}"', '"1.0"', '"success"')
        series = {name: value for name, value in metrics(server).items() if name.startswith("handler_requests_total{")}
        return sum(value for name, value in series.items() if all(label in name for label in wanted))

    before = succeeded()
    assert [predict(served) for _ in range(5)] == [200] * 5
    until(lambda: before + 5 <= succeeded() == counted())
    sizes = statistics()["batch_stats"]
    assert sum(size["compute_infer"]["count"] for size in sizes) == statistics()["execution_count"]
    control = control_of(served)
    assert control is not None
    control.kill()
    control.wait(10)
    assert predict(served) == 200
    until(lambda: get(served, "/ready").ok)
    until(lambda: succeeded() >= before + 5)


def test_requests_while_a_version_is_rolled_out_and_a_model_unregistered_are_answered_or_find_none(
    served: Sandbox, server: Server, model_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TorchServe answers nothing of a batch that is being filled then: with this delay there is always one."""

    def run(*words: str) -> list[str]:
        addresses = ["--url", server.settings.inference_url, "--management-url", server.settings.management_url]
        assert torchserve_client([*addresses, *words, "--gateway", served.control]) == 0
        return capsys.readouterr().out.splitlines()

    def clients(path: str) -> Clients:
        return Clients(f"{served.http}/predictions/{path}", 4, [PHOTOGRAPH], interval_s=0.1)

    store = ["--model-store", str(model_store), "--logs", str(server.logs)]
    try:
        # Those who name the old version are not drawn away by the new default.
        with clients(f"{MOBILENET}/1.0") as named, clients(MOBILENET) as others:
            named.wait_for(8)
            others.wait_for(8)
            lines = run("rollout", MOBILENET, "--batch-size", "4", *store)
            named.wait_for(8, 404)
        assert (set(named.statuses), set(others.statuses), named.lost + others.lost) == ({200, 404}, {200}, [])
        assert server.management.versions(MOBILENET) == ["1.0-r2"]
        # Most rollouts are lucky without it.
        assert f"{MOBILENET}: version 1.0: the gateway sends no new requests" in lines
        with clients(MOBILENET) as others:
            others.wait_for(8)
            lines = run("unregister", MOBILENET)
            others.wait_for(8, 404)
        assert (set(others.statuses), others.lost) == ({200, 404}, [])
        assert lines == [f"{MOBILENET}: the gateway sends no new requests", f"{MOBILENET}: unregistered"]
    finally:
        for copy in model_store.glob("*@*"):
            remove(copy)
