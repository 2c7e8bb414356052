import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.client.script import Server, Step, client, failed, ok, predictions
from torchserve_client import FuturesClient, NoConnection, Nodes, Rejected, RetryPolicy, bulk
from torchserve_client.answers import Answers
from torchserve_client.bulk import read_items, request_items
from torchserve_client.inputs import Keys, read_inputs
from torchserve_client.transport import Request

KEYS = Keys("m", {})


def predict(server: Server, path: Path, out: Path) -> int:
    options = Namespace(model="m", option=[], path=path, out=out, in_flight=3)
    return bulk.predict(options, Nodes({}), client(server, retry=RetryPolicy(attempts=1)))


def recorded(out: Path) -> dict[str, Any]:
    return {
        line["input"]: line.get("answer", line.get("error")) for line in map(json.loads, out.read_bytes().splitlines())
    }


def upper(request: Request) -> Step:
    return predictions(*(text.upper() for text in orjson.loads(request.body)["instances"]))


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of lines, with two lines per request."""
    monkeypatch.setattr(bulk, "LINES", 2)
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\nc\nd\ne\n")
    return path


def test_run_writes_errors_and_asks_for_those_again(tmp_path: Path, lines: Path) -> None:
    def answer(request: Request) -> Step:
        texts = orjson.loads(request.body)["instances"]
        if "c" in texts:
            return failed(503, "ServiceUnavailableException", "full")
        error = {"error": {"code": 422, "type": "CorruptInput", "message": "no"}}
        return predictions(*(error if text == "a" else text.upper() for text in texts))

    out = tmp_path / "out.jsonl"
    assert predict(Server(answer), lines, out) == 1
    full = {"code": 503, "type": "ServiceUnavailableException", "message": "full"}
    assert recorded(out) == {
        "1": {"code": 422, "type": "CorruptInput", "message": "no"}, "2": "B", "3": full, "4": full, "5": "E",
    }  # fmt: skip
    server = Server(upper)
    assert predict(server, lines, out) == 0
    assert sorted(text for request in server.sent for text in orjson.loads(request.body)["instances"]) == [
        "a",
        "c",
        "d",
    ]
    assert recorded(out) == {"1": "A", "2": "B", "3": "C", "4": "D", "5": "E"}
    server.sent.clear()
    assert (predict(server, lines, out), server.sent) == (0, [])


def test_file_that_goes_away_is_an_error_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "x.jpg").write_bytes(b"x")
    (folder / "y.jpg").write_bytes(b"y")
    out = tmp_path / "out.jsonl"
    with Answers(out) as answers, FuturesClient(client(Server(lambda _: ok(1)))) as futures:
        listed = list(read_inputs(folder))
        (folder / "x.jpg").unlink()
        outcomes = {
            sent[0].name: found for sent, found in request_items(futures, "m", read_items(listed, KEYS, answers), 0, {})
        }
    assert outcomes["y.jpg"] == [1]
    assert [error.message for error in outcomes["x.jpg"]] == ["cannot be read: No such file or directory"]


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (NoConnection("nothing answers", was_sent=False), NoConnection),
        (failed(404, "ModelNotFoundException", "Model not found: m"), Rejected),
        (failed(400, "InvalidKeyException", "Token Authentication failed"), Rejected),
    ],
)
def test_what_would_fail_for_all_ends_the_run_and_keeps_what_there_is(
    tmp_path: Path, lines: Path, step: Step, kind: type[Exception]
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(f'{{"input":"1","key":"{KEYS.make(b"a")}","answer":"A"}}\n')
    with pytest.raises(kind):
        predict(Server(lambda _: step), lines, out)
    assert recorded(out) == {"1": "A"}
