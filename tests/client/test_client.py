import copy
import json
import pickle
from math import inf, nan
from typing import Any

import pytest

from tests.client.script import Script, client, failed, ok, predictions
from tests.tables import table
from torchserve_client import (
    ChunksFailed,
    Client,
    DeadlineExceeded,
    InvalidPayload,
    ItemFailed,
    Management,
    NoConnection,
    NodesFailed,
    RankedDocument,
    Rejected,
    ServerFailed,
    raise_failed,
)
from torchserve_client.transport import Response

CORRUPT = {"error": {"code": 422, "type": "CorruptInput", "message": "truncated"}}


def test_predict_posts_to_the_model_and_version_and_reads_the_json() -> None:
    script = Script(ok({"cat": 0.9}))
    assert client(script).predict("my model", b"\xff", version="1.0") == {"cat": 0.9}
    ((request, timeout_s),) = script.sent
    assert (request.method, request.url) == ("POST", "http://server/predictions/my%20model/1.0")
    assert (request.body, request.headers["Content-Type"], timeout_s) == (b"\xff", "application/octet-stream", 60)


@pytest.mark.parametrize("timeout_s", [None, inf])
def test_call_without_a_deadline_waits_and_sends_none(timeout_s: float | None) -> None:
    script = Script(ok(1))
    asked = Client("http://server", timeout_s=timeout_s, transport=script)
    assert (asked.predict("m", "x"), asked.predict("m", "x", timeout_s=inf)) == (1, 1)
    assert [(sent.headers.get("X-Timeout-Ms"), left_s) for sent, left_s in script.sent] == [(None, inf)] * 2
    with pytest.raises(ValueError, match="it is NaN"):
        Client("http://server", timeout_s=nan)


def test_every_error_survives_pickling_as_pools_of_processes_need() -> None:
    rejected, lost = Rejected("no", 400, "Wrong"), NoConnection("gone", was_sent=True)
    rejected.retry_after_s = 2.0
    nodes = NodesFailed({"a": lost}, ["b"])
    for error in (rejected, lost, nodes, ChunksFailed({range(2): lost}, {range(2, 3): [1]}), DeadlineExceeded("late")):
        for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (type(copied), str(copied), copied.to_json()) == (type(error), str(error), error.to_json())
            assert repr(vars(copied)) == repr(vars(error))


URLS = ("127.0.0.1:1", "ftp://me:SECRET@a", "http://a:65536", "http://a:1,http://b:1", "http://a,b", ["http://a"])


@table(
    *(
        ("http://127.0.0.1:1", f"SECR{end}", ValueError, "token: contains characters")
        for end in ("\n", "\r\nX: b", "É")
    ),
    *((url, None, InvalidPayload, "http://HOST:PORT") for url in URLS),
)
def test_wrong_address_or_key_is_refused_and_not_quoted(url: Any, token: Any, kind: Any, words: str) -> None:
    for connect in (Client, Management):
        with pytest.raises(kind, match=words) as caught:
            connect(url, token=token)
        assert "SECR" not in str(caught.value)


def test_list_is_answered_in_order_with_failed_items_in_their_places() -> None:
    answer = client(Script(predictions({"cat": 1}, CORRUPT, [0.5], {"error": {}}))).predict("m", ["a", "b", "c", "d"])
    assert (answer[3].status, answer[3].type, answer[3].message) == (200, "ItemFailed", "")
    assert (answer[0], answer[2]) == ({"cat": 1}, [0.5])
    assert isinstance(answer[1], ItemFailed)
    assert (answer[1].status, answer[1].type, answer[1].message) == (422, "CorruptInput", "truncated")
    with pytest.raises(ItemFailed, match="truncated"):
        raise_failed(answer)


def test_embed_and_rerank_send_lists_and_raise_what_failed_and_workers_are_asked_for_their_state() -> None:
    told = [Response(200, b"{}", {"X-In-Flight": count, "X-Fingerprint": "f"}) for count in ("3", "many", "0")]
    lists = [predictions([0.5], [1]), predictions({"score": 0.1}, {"score": 0.9}), predictions([0.5], CORRUPT)]
    script = Script(*told, *lists)
    asked = client(script)
    assert [asked.in_flight("m", "1.0"), asked.in_flight("m", "1.0"), asked.fingerprint("m", "1.0")] == [3, None, "f"]
    assert {request.headers["X-Model-Metadata"] for request, _ in script.sent} == {"1"}
    script.sent.clear()
    assert asked.embed("m", ("a", "b"), input_type="query") == [[0.5], [1]]
    assert asked.rerank("m", "q", ["a", "b"], top_n=1) == [RankedDocument(1, 0.9)]
    with pytest.raises(ItemFailed, match="truncated"):
        asked.embed("m", ["a", "b"])
    with pytest.raises(ItemFailed, match="truncated"):
        asked.rerank("m", "q", ["a", "b"])
    assert [json.loads(request.body) for request, _ in script.sent[:2]] == [
        {"instances": ["a", "b"], "input_type": "query"},
        {"instances": [{"document": "a"}, {"document": "b"}], "query": "q"},
    ]


@table(
    (failed(404, "Reason", "words"), Rejected, (404, "Reason", "words")),
    (failed(507, "OutOfMemory", "too much"), ServerFailed, (507, "OutOfMemory", "too much")),
    (Response(400, b'{"error": "unexpected input"}'), Rejected, (400, "Rejected", "unexpected input")),
    (Response(400, json.dumps(CORRUPT).encode()), Rejected, (400, "CorruptInput", "truncated")),
    (Response(413, b"", reason="Too Large"), Rejected, (413, "Rejected", "Too Large")),
    (Response(500, b"<html>", reason=""), ServerFailed, (500, "ServerFailed", "HTTP 500")),
)
def test_error_carries_what_the_server_said_and_is_not_retried(
    response: Response, kind: type[Exception], expected: tuple[int, str, str]
) -> None:
    script = Script(response)
    with pytest.raises(kind) as raised:
        client(script).predict("m", "a")
    assert len(script.sent) == 1
    error = raised.value
    assert (error.status, error.type, error.message) == expected  # type: ignore[attr-defined]
