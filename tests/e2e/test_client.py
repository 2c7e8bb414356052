"""client/ against a real TorchServe: predictions, and the commands of `torchserve-client`."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from deploy.gateway.sandbox import Sandbox
from deploy.models import ROOT, model
from deploy.run.server import Server
from tests.e2e.conftest import MOBILENET, send_together
from tests.photographs import crops, path, photograph
from tests.waiting import until
from torchserve_client import ByCount, ChunkingClient, Client, FuturesClient, ItemFailed, Rejected, RetryPolicy
from torchserve_client.cli import main

# Seconds of work, so that a run can be ended in its middle.
PHOTOGRAPHS = 600
PATIENT = RetryPolicy(attempts=40, statuses=frozenset({404, 503}))


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.settings.inference_url, server.settings.management_url) as connected:
        yield connected


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of photographs, one of them broken, one in a folder below."""
    folder = tmp_path / "photos"
    (folder / "below").mkdir(parents=True)
    pictures = crops(6, sides=(300, 400))
    for index in range(PHOTOGRAPHS - 2):
        (folder / f"{index:03}.jpg").write_bytes(pictures[index % len(pictures)])
    (folder / "below" / "cat.png").write_bytes(photograph("chelsea"))
    (folder / "broken.jpg").write_bytes(pictures[0][:1000])
    return folder


def of(server: Server, *arguments: str) -> list[str]:
    settings = server.settings
    return ["--server", settings.inference_url, "--management", settings.management_url, *arguments]


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_bytes().splitlines()]


def top(answer: dict[str, float]) -> str:
    return max(answer, key=lambda label: answer[label])


def test_payloads_of_every_kind_get_their_answers_and_errors_what_the_server_said(
    client: Client, serve: Callable[..., str]
) -> None:
    name, body = serve(), photograph("chelsea")
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


def test_full_queue_is_503_and_waited_out_by_the_client(
    server: Server, client: Client, serve: Callable[..., str], variant: Callable[..., str]
) -> None:
    name = variant("mobilenet-short-queue", jobQueueSize=4)
    serve(archive=name, name=name, batch_size=2, max_batch_delay_ms=1)
    answers = send_together(server, name, [photograph("chelsea")] * 48)
    assert {answer.status for answer in answers} == {200, 503}
    assert {answer.body["type"] for answer in answers if answer.status == 503} == {"ServiceUnavailableException"}
    with FuturesClient(client, max_workers=24) as futures:
        submitted = [futures.submit(name, photograph("chelsea"), timeout_s=120) for _ in range(72)]
        assert {top(future.result()) for future in as_completed(submitted)} == {"Egyptian cat"}


@pytest.mark.usefixtures("nothing_registered")
def test_commands_register_describe_scale_and_unregister_and_say_why_a_worker_failed(
    server: Server, variant: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(*arguments: str) -> str:
        assert main(of(server, *arguments)) == 0
        return capsys.readouterr().out

    register = ["register", MOBILENET, "--batch-size", "4", "--max-batch-delay", "7", "--logs", str(server.logs)]
    assert say(*register, "--wait").splitlines() == [
        "mobilenet-v2: registered, version 1.0, batch_size 4, max_batch_delay 7 ms, 1 worker",
        "mobilenet-v2: ready",
    ]
    assert say("scale", MOBILENET, "2", "--wait").splitlines()[-1] == "mobilenet-v2: ready"
    assert say("wait-ready", MOBILENET) == "mobilenet-v2: ready\n"
    (described,) = json.loads(say("describe", "--json"))
    assert (described["modelName"], described["batchSize"], len(described["workers"])) == (MOBILENET, 4, 2)
    assert "2 READY" in say("describe", MOBILENET)
    assert say("unregister", MOBILENET) == "mobilenet-v2: unregistered\n"
    assert say("describe") == "no model is registered\n"
    # Without the log at hand only that it failed is known, and where to look.
    for name, logs, timeout_s, told in (
        (
            "mobilenet-typo",
            server.logs,
            60,
            "Cannot load mobilenet-typo: InvalidConfig: handler: resize_sise: Unexpected",
        ),
        (
            "mobilenet-far",
            tmp_path,
            2,
            "no ready worker after startupTimeout, 2 s; the server's model_log.log says why\n",
        ),
    ):
        variant(name, handler={"resize_sise": 256}, startupTimeout=timeout_s)
        assert main(of(server, "register", name, "--url", name, "--wait", "--logs", str(logs))) == 1
        assert capsys.readouterr().err.startswith(f"client: {name}: {told}")
        assert server.management.models() == []


class Predicting:
    """`torchserve-client predict` in a process of its own, under way."""

    def __init__(self, server: Server, photos: Path, *more: str, name: str = "answers", timeout_s: int = 120) -> None:
        self.out = photos.parent / f"{name}.jsonl"
        words = ["predict", MOBILENET, str(photos), "--out", str(self.out), "--timeout", str(timeout_s)]
        command = [*more, *of(server, *words)]
        # A shell's background job ignores SIGINT, and so would every process below it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torchserve_client", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, count: int) -> int:
        """Wait until there are so many answers; returns how many there are."""
        until(lambda: self.out.exists() and self.out.read_bytes().count(b"\n") >= count, every_s=0.01)
        return self.out.read_bytes().count(b"\n")

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it said on stderr."""
        _, error = self.process.communicate(timeout=60)
        return self.process.returncode, error


def test_predict_that_is_interrupted_or_killed_goes_on_and_asks_again_only_for_failures(
    server: Server, serve: Callable[..., str], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = serve()
    predicting = Predicting(server, photos)
    predicting.wait_for(20)
    predicting.process.send_signal(signal.SIGINT)
    assert predicting.end() == (
        130,
        f"client: interrupted; what was answered is in {predicting.out}, the same command goes on from there\n",
    )
    answered = predicting.wait_for(20)
    again = Predicting(server, photos)
    answered = again.wait_for(answered + 20)
    again.process.kill()
    again.end()
    assert answered < PHOTOGRAPHS
    arguments = of(server, "predict", name, str(photos), "--out", str(again.out))
    assert main(arguments) == 1
    answers = {line["input"]: line for line in lines(again.out)}
    assert len(lines(again.out)) == len(answers) == PHOTOGRAPHS
    assert top(answers["below/cat.png"]["answer"]) == "Egyptian cat"
    assert answers["broken.jpg"]["error"]["code"] == 422
    (photos / "broken.jpg").write_bytes(photograph("coffee"))
    capsys.readouterr()
    assert main(arguments) == 0
    assert f"1 answered, {PHOTOGRAPHS - 1} before, 0 failed" in capsys.readouterr().out
    assert top(next(line["answer"] for line in lines(again.out) if line["input"] == "broken.jpg")) == "espresso"


def test_arrays_are_predicted_in_chunks_and_from_files(  # noqa: PLR0917
    server: Server,
    gateway: Sandbox,
    archive: Callable[..., str],
    serve: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = serve(archive=archive(model("batch2")), name="batch2", max_batch_delay_ms=1)
    five = np.arange(5, dtype=np.int32).reshape(5, 1)
    for address in (server.settings.inference_url, gateway.http):
        # The gateway may not have seen yet that the model is there.
        with Client(address, retry=PATIENT) as asking, ChunkingClient(asking, ByCount(2)) as chunking:
            found = [future.result()["OUTPUT_1"].tolist() for future in chunking.submit(name, {"INPUT_1": five})]
            assert found == [[[0], [2]], [[4], [6]], [[8]]]
            with pytest.raises(Rejected, match="batch-size must be <= 2"):
                asking.predict(name, {"INPUT_1": five[:4]})
    packed, kind = io.BytesIO(), "application/x-npz"
    np.savez_compressed(packed, INPUT_1=five[:2])
    for address in (f"{server.settings.inference_url}/predictions/{name}", f"{gateway.http}/v2/models/{name}/infer"):
        headers = {"Content-Type": kind, "Accept": kind}
        answer = requests.post(address, packed.getvalue(), headers=headers, timeout=60)
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, kind)
        assert np.load(io.BytesIO(answer.content))["OUTPUT_1"].tolist() == [[0], [2]]
    folder, out = tmp_path / "rows", tmp_path / "out.jsonl"
    folder.mkdir()
    np.save(folder / "one.npy", five[1:3])
    np.savez(folder / "two.npz", INPUT_1=five[3:4])
    np.save(folder / "wide.npy", five[:4])
    assert main(of(server, "predict", name, str(folder), "--out", str(out))) == 1
    answers = {line["input"]: line for line in lines(out)}
    assert answers["one.npy"]["answer"] == {"outputs": {"OUTPUT_1": [[2], [4]]}}
    assert answers["two.npz"]["answer"] == {"outputs": {"OUTPUT_1": [[6]]}}
    assert "batch-size must be <= 2" in answers["wide.npy"]["error"]["message"]
    capsys.readouterr()
    assert main(of(server, "describe", name)) == 0
    shown = capsys.readouterr().out
    assert ("max_batch_size 2" in shown, "INPUT_1" in shown) == (True, True)
    # Asking a model what it takes does not keep it from answering, as TorchServe's own question would.
    assert Client(server.settings.inference_url, timeout_s=60).predict(name, {"INPUT_1": [4]}) == {"OUTPUT_1": [8]}
