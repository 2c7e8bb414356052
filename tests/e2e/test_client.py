"""client/ against a real TorchServe: predictions, and the commands of `torchserve-client`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from deploy.models import ROOT
from deploy.sandbox import started
from deploy.server import Server
from tests.bulk_job import command, job
from tests.e2e.conftest import MOBILENET
from tests.photographs import crops, path, photograph
from torchserve_client import ByCount, ChunkingClient, Client, FuturesClient, ItemFailed, Rejected
from torchserve_client.cli import main

# Seconds of work, so that a run can be ended in its middle.
PHOTOGRAPHS = 600


@pytest.fixture
def client(server: Server) -> Any:
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


def test_every_payload_of_one_photograph_gets_the_same_label(client: Client, serve: Callable[..., str]) -> None:
    name = serve()
    body = photograph("chelsea")
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


def test_errors_carry_what_the_server_said(client: Client, serve: Callable[..., str]) -> None:
    name = serve()
    with pytest.raises(Rejected) as raised:
        client.predict(name, b"no photograph")
    assert (raised.value.status, raised.value.type) == (415, "UnsupportedMedia")
    with pytest.raises(Rejected) as raised:
        client.predict("nobody", b"x")
    assert (raised.value.status, raised.value.type) == (404, "ModelNotFoundException")
    good, bad = client.predict(name, [photograph("coffee"), b"no photograph"])
    assert top(good) == "espresso"
    assert isinstance(bad, ItemFailed)
    assert [item.status for item in client.predict(name, [b"none", b"of these"])] == [415, 415]


def test_full_queue_is_waited_out_and_every_request_answered(
    client: Client, serve: Callable[..., str], variant: Callable[..., str]
) -> None:
    name = variant("mobilenet-short-queue", jobQueueSize=4)
    serve(archive=name, name=name, batch_size=2, max_batch_delay_ms=1)
    with FuturesClient(client, max_workers=24) as futures:
        submitted = [futures.submit(name, photograph("chelsea"), timeout_s=60) for _ in range(72)]
        assert {top(future.result()) for future in as_completed(submitted)} == {"Egyptian cat"}


def test_chunks_are_answered_in_order_by_the_described_batch_size_and_by_count(
    client: Client, serve: Callable[..., str]
) -> None:
    name = serve()
    pictures = [photograph("chelsea"), photograph("coffee"), photograph("china")] * 6
    labels = ["Egyptian cat", "espresso", "palace"] * 6
    with ChunkingClient(client) as chunking:
        assert [top(answer) for answer in chunking.infer_batch(name, pictures, top_k=1)] == labels
        assert max(len(future.result()) for future in chunking.submit(name, pictures)) <= 8
    with ChunkingClient(client, ByCount(5)) as chunking:
        answer = chunking.infer_batch(name, {"b64": np.array([*pictures, b"none"], object)}, top_k=1)
    assert [label.decode() for label in answer["label"][:-1, 0]] == labels
    assert [bool(error) for error in answer["error"]] == [False] * 18 + [True]


@pytest.mark.usefixtures("nothing_registered")
def test_commands_register_describe_scale_and_unregister(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert main(of(server, "unregister", MOBILENET)) == 1
    assert capsys.readouterr().err == "client: Model not found: mobilenet-v2\n"


@pytest.mark.usefixtures("nothing_registered")
def test_register_and_wait_says_why_a_worker_failed(
    server: Server, variant: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def register(name: str, logs: Path, **settings: int) -> str:
        variant(name, handler={"resize_sise": 256}, **settings)
        assert main(of(server, "register", name, "--url", name, "--wait", "--logs", str(logs))) == 1
        return capsys.readouterr().err

    assert register("mobilenet-typo", server.logs).startswith(
        "client: mobilenet-typo: Cannot load mobilenet-typo: InvalidConfig: handler: resize_sise: Unexpected"
    )
    # Without the log at hand only that it failed is known, and where to look.
    assert register("mobilenet-far", tmp_path, startupTimeout=2) == (
        "client: mobilenet-far: no ready worker after startupTimeout, 2 s; the server's model_log.log says why\n"
    )
    assert server.management.models() == []


def test_predict_writes_an_answer_for_each_file_and_a_second_run_asks_only_for_failures(
    server: Server, serve: Callable[..., str], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # In the very folder that is asked about, where it is not taken for a photograph.
    name, out = serve(), photos / "answers.jsonl"
    arguments = of(server, "predict", name, str(photos), "--out", str(out), "--option", "top_k=1")
    assert main(arguments) == 1
    answers = {line["input"]: line for line in lines(out)}
    assert len(lines(out)) == len(answers) == PHOTOGRAPHS
    assert top(answers["below/cat.png"]["answer"]) == "Egyptian cat"
    assert answers["broken.jpg"]["error"]["code"] == 422
    (photos / "broken.jpg").write_bytes(photograph("coffee"))
    capsys.readouterr()
    assert main(arguments) == 0
    assert f"1 answered, {PHOTOGRAPHS - 1} before, 0 failed" in capsys.readouterr().out
    assert top(next(line["answer"] for line in lines(out) if line["input"] == "broken.jpg")) == "espresso"
    assert len(lines(out)) == PHOTOGRAPHS


class Predicting:
    """`torchserve-client predict` in a process of its own, under way."""

    def __init__(self, server: Server, photos: Path, *more: str, name: str = "answers") -> None:
        self.out = photos.parent / f"{name}.jsonl"
        command = [*more, *of(server, "predict", MOBILENET, str(photos), "--out", str(self.out), "--timeout", "3")]
        # A shell's background job ignores SIGINT, and so would every process below it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torchserve_client", *command], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, count: int) -> None:
        """Wait until there are so many answers."""
        deadline = time.monotonic() + 60
        while not self.out.exists() or self.out.read_bytes().count(b"\n") < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it said on stderr."""
        _, error = self.process.communicate(timeout=60)
        return self.process.returncode, error


def test_predict_that_is_interrupted_or_killed_goes_on_where_it_was(
    server: Server, serve: Callable[..., str], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = serve()
    (photos / "broken.jpg").unlink()
    predicting = Predicting(server, photos)
    predicting.wait_for(20)
    predicting.process.send_signal(signal.SIGINT)
    code, error = predicting.end()
    assert code == 130
    assert error == (
        f"client: interrupted; what was answered is in {predicting.out}, the same command goes on from there\n"
    )
    answered = len(lines(predicting.out))
    assert 20 <= answered < PHOTOGRAPHS - 1
    again = Predicting(server, photos)
    again.wait_for(20)
    again.process.kill()
    again.end()
    assert main(of(server, "predict", name, str(photos), "--out", str(again.out))) == 0
    names = [line["input"] for line in lines(again.out)]
    assert len(names) == len(set(names)) == PHOTOGRAPHS - 1
    assert all("answer" in line for line in lines(again.out))


def test_server_killed_in_mid_run_ends_predict_that_has_no_other_and_costs_one_that_has_nothing(
    server: Server, serve: Callable[..., str], model_store: Path, photos: Path
) -> None:
    (photos / "broken.jpg").unlink()
    name = serve()
    with started(model_store) as doomed:
        doomed.register(name, f"{name}.mar", batch_size=8, max_batch_delay_ms=20, workers=1)
        alone = Predicting(doomed, photos, name="alone")
        both = Predicting(server, photos, "--server", doomed.settings.inference_url, name="both")
        for each in (alone, both):
            each.wait_for(20)
        before = lines(both.out)
        pid = doomed.pid()
        assert pid is not None
        workers = psutil.Process(pid).children(recursive=True)
        os.kill(pid, signal.SIGKILL)
        code, error = alone.end()
        assert code == 2
        assert error.startswith(f"client: {doomed.settings.inference_url}: ")
        assert both.end() == (0, "")
        for worker in workers:
            worker.wait(30)
    # Some were asked before it died, and every one is answered, once.
    assert len(before) < PHOTOGRAPHS - 1
    assert_all_answered_once(both.out)
    answered = {line["input"] for line in lines(alone.out) if "answer" in line}
    assert 20 <= len(answered) < PHOTOGRAPHS - 1
    assert main(of(server, "predict", name, str(photos), "--out", str(alone.out))) == 0
    assert_all_answered_once(alone.out)
    assert {line["input"]: top(line["answer"]) for line in lines(alone.out)} == {
        line["input"]: top(line["answer"]) for line in lines(both.out)
    }


def assert_all_answered_once(out: Path) -> None:
    """Of the photographs without the broken one."""
    names = [line["input"] for line in lines(out) if "answer" in line]
    assert len(names) == len(set(names)) == len(lines(out)) == PHOTOGRAPHS - 1


def test_shards_of_the_kubernetes_job_joined_are_a_run_without_shards(
    server: Server, serve: Callable[..., str], photos: Path
) -> None:
    name, files = serve(), sorted(photos.iterdir())
    for each in files[40:]:
        if each.suffix == ".jpg" and each.name != "broken.jpg":
            each.unlink()
    answers = photos.parent / "answers"
    answers.mkdir()
    mounted = {"/inputs": str(photos), "--out=/answers": f"--out={answers}", "resnet-152": name}
    mounted["--server=http://torchserve-edge:8000"] = f"--server={server.settings.inference_url}"
    codes = []
    for index in range(job()["spec"]["completions"]):
        image, *words = command(index)
        assert image == "client"
        assert mounted.keys() <= set(words)
        codes.append(main([mounted.get(word, word) for word in words]))
    whole = photos.parent / "whole.jsonl"
    assert main(of(server, "predict", name, str(photos), "--out", str(whole))) == 1
    # The shard of the one that cannot be read says so, and no other.
    assert sorted(codes) == [0] * 15 + [1]
    joined = sorted(b"".join(file.read_bytes() for file in answers.iterdir()).splitlines())
    assert len(joined) == len(list(photos.rglob("*.*"))) == 42
    assert [rounded(line) for line in joined] == [rounded(line) for line in sorted(whole.read_bytes().splitlines())]


def rounded(line: bytes) -> dict[str, Any]:
    """A line whose answer is its labels, with two digits: bf16 of another batch size has another third one."""
    read: dict[str, Any] = json.loads(line)
    return {**read, "answer": {label: round(value, 2) for label, value in read.get("answer", {}).items()}}


def test_keys_of_a_server_that_asks_for_tokens_are_read_from_its_file(
    model_store: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(model_store, ROOT / "config.production.properties") as server:
        keys = ["--keys", str(server.directory / "key_file.json")]
        server_keys = json.loads((server.directory / "key_file.json").read_text())
        assert main([*keys, *of(server, "wait-ready", "resnet-152")]) == 0
        assert main(of(server, "describe")) == 1
        token = server_keys["inference"]["key"]
        with Client(server.settings.inference_url, token=token) as client:
            assert len(client.predict("resnet-152", photograph("coffee"), top_k=3)) == 3
        with Client(server.settings.inference_url) as client, pytest.raises(Rejected) as raised:
            client.predict("resnet-152", photograph("coffee"))
        assert raised.value.type == "InvalidKeyException"
        out = photos.parent / "answers.jsonl"
        for path_ in sorted(photos.glob("*.jpg"))[4:]:
            path_.unlink()
        capsys.readouterr()
        assert main(of(server, "predict", "resnet-152", str(photos), "--out", str(out))) == 1
        assert "Token" in capsys.readouterr().err
        assert main([*keys, *of(server, "predict", "resnet-152", str(photos), "--out", str(out))]) == 0
