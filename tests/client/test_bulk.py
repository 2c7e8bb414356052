"""`predict`: the inputs of a folder or file by name, and a file of answers that the next run continues."""

import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from argparse import Namespace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from tests.client.conftest import serving
from tests.client.script import Script, Server, Step, client, failed, ok, predictions
from tests.tables import table
from tests.waiting import until
from torchserve_client import (
    FuturesClient,
    InvalidPayload,
    Management,
    NoConnection,
    Nodes,
    Rejected,
    RetryPolicy,
    bulk,
)
from torchserve_client.answers import Answers
from torchserve_client.bulk import read_items, request_items
from torchserve_client.inputs import Input, Keys, read_inputs
from torchserve_client.transport import Request

KEYS = Keys("m", {})


def key(content: str) -> str:
    return KEYS.make(content.encode())


def line(name: str, content: str, answer: str = "1") -> str:
    """Return a line of the file for an input's name, its content and the JSON of its answer."""
    return f'{{"input":"{name}","key":"{key(content)}","answer":{answer}}}\n'


def recorded(out: Path) -> dict[str, Any]:
    lines = [json.loads(each) for each in out.read_bytes().splitlines()]
    found = {each["input"]: each.get("answer", each.get("error")) for each in lines}
    assert len(found) == len(lines)
    return found


def test_folder_lists_its_files_by_path_without_hidden_ones_and_linked_folders(tmp_path: Path) -> None:
    root, odd = tmp_path / "photos", os.fsdecode(b"caf\xe9.jpg")
    for name in ("b.jpg", "a.jpg", odd, "below/c.jpg", "below-that/d.jpg", ".hidden", ".git/e.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    (root / "link").symlink_to(root)
    (root / "link.jpg").symlink_to(root / "a.jpg")
    names = {name: name for name in ("a.jpg", "b.jpg", odd, "link.jpg", "below/c.jpg", "below-that/d.jpg")}
    names[odd] = r"caf\xe9.jpg"
    assert list(read_inputs(root)) == [Input(shown, root / name) for name, shown in names.items()]
    found = read_inputs(root, {root / "a.jpg", root / odd, root / "below" / "c.jpg"})
    assert [each.name for each in found] == ["b.jpg", "link.jpg", "below-that/d.jpg"]


def test_lines_are_numbered_as_in_the_file_and_empty_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeff첫째\n\nsecond\u2028still second\r\n   \nthird".encode())
    assert list(read_inputs(path)) == [Input("1", "첫째"), Input("3", "second\u2028still second"), Input("5", "third")]
    # It could not be read twice.
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidPayload, match="neither a folder nor a file of UTF-8 lines"):
        list(read_inputs(tmp_path / "pipe"))


def test_key_is_that_of_content_model_and_options() -> None:
    options: Any = ({}, {"top_k": 1}, {"top_k": 2}, {"top_k": 1, "x": "y"})
    contents = product("mn", options, (b"a", b"b", b""))
    assert len({Keys(model, given).make(content) for model, given, content in contents}) == 24
    assert Keys("m", {"b": 1, "a": 2}).make(b"a") == Keys("m", {"a": 2, "b": 1}).make(b"a")


WHOLE = line("c", "z", "[1,2]").rstrip("\n")


# Within the line's prefix, its name, its key and its answer, and before its end.
@pytest.mark.parametrize("cut", [1, 11, 30, len(WHOLE) - 1, len(WHOLE)])
def test_line_that_a_kill_cut_off_is_asked_for_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line("a", "x") + WHOLE[:cut])
    with Answers(path) as answers:
        assert answers.match([Input("a", "x"), Input("b", "y"), Input("c", "z")], KEYS) == 3
        assert [answers.has(name) for name in "abc"] == [True, False, cut == len(WHOLE)]
        answers.write(["b"], [key("y")], [2])
    kept = line("a", "x") + (f"{WHOLE}\n" if cut == len(WHOLE) else "")
    assert path.read_text() == kept + line("b", "y", "2")


def test_answer_to_another_content_is_set_aside_and_answers_to_absent_inputs_stay(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line("a", "x") + line("b", "old") + line("gone", "z"))
    with Answers(path) as answers:
        assert answers.match([Input("a", "x"), Input("b", "y")], KEYS) == 2
        assert (answers.earlier, answers.has("a"), answers.has("b")) == (1, True, False)
    assert path.read_text() == line("a", "x") + line("gone", "z")
    assert ((tmp_path / "answers.jsonl.old").read_text(), len([*tmp_path.iterdir()])) == (line("b", "old"), 2)


def test_file_has_one_writer_at_a_time_even_after_it_was_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line("a", "x") + '{"input":"b","error":{}}\n')
    for _ in range(2):
        with Answers(path) as answers:
            with pytest.raises(InvalidPayload, match=r"answers\.jsonl: another run writes to it; wait for it"):
                Answers(path)
            answers.match([Input("a", "x"), Input("b", "y")], KEYS)
            with pytest.raises(InvalidPayload, match="another run writes to it"):
                Answers(path)
            answers.write(["c"], ["k"], [Rejected("no")])
    assert path.read_text().startswith(line("a", "x"))


def test_file_that_is_replaced_while_it_is_locked_is_reopened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line("a", "old"))
    lock = fcntl.flock

    def late(*arguments: Any) -> None:
        # Another run ends now and has replaced the file.
        monkeypatch.setattr(fcntl, "flock", lock)
        (tmp_path / "new").write_text(line("a", "x"))
        (tmp_path / "new").replace(path)
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    with Answers(path) as answers:
        answers.match([Input("a", "x")], KEYS)
        assert answers.earlier == 1
        answers.write(["b"], [key("y")], [2])
    assert path.read_text() == line("a", "x") + line("b", "y", "2")


@pytest.mark.parametrize("content", [b"\xff\xd8\xff", b'{"input":"a","answer":1}\n{"other": 1}\n', b"[1]\n"])
def test_file_that_is_not_ours_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "precious.jpg"
    path.write_bytes(content)
    with pytest.raises(InvalidPayload, match="is not an answer of `predict`"):
        Answers(path)
    assert path.read_bytes() == content


def predict(server: Server, path: Path, out: Path) -> int:
    options = Namespace(model="m", option=[], path=path, out=out, in_flight=3)
    return bulk.predict(options, Nodes({}), client(server, retry=RetryPolicy(attempts=1)))


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bulk, "LINES", 2)
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\nc\nd\ne\n")
    return path


@table(
    # Lines are sent as lists.
    (None, None, bulk.LISTS_IN_FLIGHT),
    (5, None, 5),
    *((None, batch_size, expected) for batch_size, expected in ((8, 24), (1, 8), (99, 64))),
    # Without access to the management API.
    (None, 0, 16),
)
def test_requests_in_flight_fill_three_batches_or_are_as_asked(
    asked: int | None, batch_size: int | None, expected: int, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_lines = batch_size is None
    monkeypatch.setattr(bulk, "FuturesClient", made := Mock(wraps=FuturesClient))
    described = ok([{"batchSize": batch_size}]) if batch_size else NoConnection("none", was_sent=False)
    (folder := lines.parent / "folder").mkdir()
    (folder / "a").write_text("a")
    path = lines if is_lines else folder
    options = Namespace(model="m", option=[], path=path, out=lines.parent / "out", in_flight=asked)
    nodes = Nodes({"n": Management("http://n", transport=Script(described))})
    server = Server(lambda request: predictions(*orjson.loads(request.body)["instances"]) if is_lines else ok("A"))
    assert bulk.predict(options, nodes, client(server)) == 0
    assert made.call_args.args[1] == expected


def test_run_writes_errors_and_asks_for_those_again(
    tmp_path: Path, lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(request: Request) -> Step:
        texts = orjson.loads(request.body)["instances"]
        if "c" in texts and len(server.sent) <= 3:
            return failed(503, "ServiceUnavailableException", "full")
        is_bad = "a" in texts and len(server.sent) <= 3
        return predictions(*({"error": no} if is_bad and text == "a" else text.upper() for text in texts))

    out, server, no = tmp_path / "out.jsonl", Server(answer), {"code": 422, "type": "CorruptInput", "message": "no"}
    assert predict(server, lines, out) == 1
    full = {"code": 503, "type": "ServiceUnavailableException", "message": "full"}
    assert recorded(out) == {"1": no, "2": "B", "3": full, "4": full, "5": "E"}
    assert re.search(r"out\.jsonl: 2 answered, 3 failed, [\d.]+ s, [\d.]+/s\s*$", capsys.readouterr().out)
    out.chmod(0o640)
    assert predict(server, lines, out) == 0
    again = sorted(text for request in server.sent[3:] for text in orjson.loads(request.body)["instances"])
    assert (again, recorded(out)) == (["a", "c", "d"], {"1": "A", "2": "B", "3": "C", "4": "D", "5": "E"})
    assert " 3 answered, 2 before, 0 failed, " in " ".join(capsys.readouterr().out.split())
    # The file that replaced it has its permissions.
    assert stat.S_IMODE(out.stat().st_mode) == 0o640


ROW = {"name": "x", "datatype": "FP32", "shape": [-1, 1]}
TEXT = {"name": "text", "datatype": "BYTES", "shape": [-1, 1]}


@table(
    ("rows.txt", "[1]\n[2.5]\n[3]\n", ROW, [[[1], [2.5]], [[3]]]),
    ("rows.txt", '{"x": [1]}\n', ROW, [[{"x": [1]}]]),
    # A text may look like JSON; an object with the model's input, or a file of JSON lines, is a request.
    ("texts.txt", "[1]\n2024\n", TEXT, [["[1]", "2024"]]),
    ("texts.txt", '{"text": "a"}\n', TEXT, [[{"text": "a"}]]),
    ("texts.jsonl", '"a"\n{"text": "b", "top_k": 2}\n', TEXT, [["a", {"text": "b", "top_k": 2}]]),
)
def test_line_is_json_if_the_model_has_no_texts_or_the_file_says_so(
    name: str, content: str, tensor: Any, asked: Any, tmp_path: Path
) -> None:
    described = {"name": "m", "versions": ["1"], "inputs": [tensor], "outputs": []}

    def answer(request: Request) -> Step:
        if request.method == "GET":
            return ok({"max_batch_size": 2} if request.url.endswith("/config") else described)
        return predictions(*orjson.loads(request.body)["instances"])

    (tmp_path / name).write_text(content)
    server = Server(answer)
    assert predict(server, tmp_path / name, tmp_path / "out.jsonl") == 0
    # No list is longer than the model accepts.
    sent = [orjson.loads(request.body)["instances"] for request in server.sent if request.method == "POST"]
    assert sorted(sent, key=str) == sorted(asked, key=str)


def test_next_run_asks_for_what_is_new_or_changed_alone_and_never_for_its_own_file(tmp_path: Path) -> None:
    out, server = tmp_path / "answers.jsonl", Server(lambda request: ok(request.body.decode().upper()))
    (tmp_path / "below").mkdir()
    for name in ("1", "2", "below/1"):
        (tmp_path / name).write_text(f"text {name}")
    for asked in (["text 1", "text 2", "text below/1"], ["changed", "new"], []):
        server.sent.clear()
        assert predict(server, tmp_path, out) == 0
        assert sorted(request.body.decode() for request in server.sent) == asked
        (tmp_path / "1").write_text("changed")
        (tmp_path / "3").write_text("new")
    assert recorded(out) == {"1": "CHANGED", "2": "TEXT 2", "3": "NEW", "below/1": "TEXT BELOW/1"}


def test_file_that_goes_away_is_an_error_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in "xy":
        (folder / name).write_text(name)
    with Answers(tmp_path / "out") as answers, FuturesClient(client(Server(lambda _: ok(1)))) as futures:
        listed = list(read_inputs(folder))
        (folder / "x").unlink()
        sent = request_items(futures, "m", read_items(listed, KEYS, answers), 0, {})
        outcomes = {items[0].name: found for items, found in sent}
    assert outcomes["y"] == [1]
    assert [error.message for error in outcomes["x"]] == ["cannot be read: No such file or directory"]


@table(
    (NoConnection("nothing answers", was_sent=False), NoConnection),
    (failed(404, "ModelNotFoundException", "Model not found: m"), Rejected),
    (failed(400, "InvalidKeyException", "Token Authentication failed"), Rejected),
)
def test_failure_of_all_keeps_the_answers(step: Step, kind: type[Exception], tmp_path: Path, lines: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(line("1", "a", '"A"'))
    with pytest.raises(kind):
        predict(Server(lambda _: step), lines, out)
    assert recorded(out) == {"1": "A"}


@pytest.mark.builds
def test_run_that_is_interrupted_or_killed_goes_on_from_its_last_answer(tmp_path: Path) -> None:
    path, out, asked = tmp_path / "texts", tmp_path / "out.jsonl", list[str]()
    path.mkdir()
    for number in range(400):
        (path / str(number)).write_text(f"text {number}")

    def answer(url_path: str, content_type: str, body: bytes) -> Any:
        asked.append(body.decode())
        # Seconds of work, so that a signal ends a run in its middle.
        time.sleep(0.01 if len(said) < 2 else 0)
        return [{"batchSize": 1}] if url_path.startswith("/models/") else body.decode().upper()

    with serving(answer) as url:
        words = f"--url {url} --management-url {url} predict m {path} --in-flight 1 --out {out}".split()
        command, said = [sys.executable, "-m", "torchserve_client", *words], list[tuple[int, str]]()
        for number in (signal.SIGINT, signal.SIGKILL, 0):
            before = len(out.read_bytes().splitlines()) if out.exists() else 0
            asked.clear()
            # Background jobs of a shell ignore SIGINT, and so would the processes that they start.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            if number:
                until(lambda before=before: out.exists() and out.read_bytes().count(b"\n") >= before + 20, every_s=0.01)  # type: ignore[misc]
                running.send_signal(number)
            said.append((running.wait(60), running.communicate()[1]))
    told = f"torchserve-client: interrupted; {out} contains the answers so far, run the command again to resume\n"
    assert (said[0], said[1][0], said[2]) == ((130, told), -signal.SIGKILL, (0, ""))
    # An incomplete line is requested again, and the server may read the killed run's last request only now.
    assert 0 < len({*asked}) <= 400 - before + 2
    assert len(recorded(out)) == 400
