"""The bytes between frontend and worker: as TorchServe's own reader and writer have them, in any pieces."""

import socket
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from ts.protocol.otf_message_handler import create_predict_response, retrieve_msg
from ts.service import Service

from handlers.continuous.frontend import CHUNK_BYTES, Disconnected, Link, NewRequest, ProtocolError
from handlers.errors import BodyTooLarge
from handlers.pipeline.flow import respond
from handlers.protocol.responses import Response
from handlers.protocol.rows import body_of, read_headers
from handlers.protocol.wire import FORM_FIELDS
from tests.handlers.batching.frontend import Body, Field, message, read_answers
from tests.handlers.serving import Patch, context

REQUESTS: dict[str, tuple[dict[str, str], Body]] = {
    **{"a": ({"X-Priority": "1", "Accept": "*/*"}, b'{"text": "one"}'), "b": ({}, b"")},
    "c": ({"accept-language": "grüß"}, bytes(range(256)) * 8),
    "d": ({}, [Field("data", "image/png", b"\x89PNG"), Field("top_k", "", b"3")]),
}
LARGE = bytes(range(251)) * (3 * CHUNK_BYTES // 251)


class Pair:
    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.link = Link(self.theirs)

    def send(self, data: bytes) -> None:
        threading.Thread(target=self.ours.sendall, args=(data,), daemon=True).start()

    def receive(self) -> dict[str, NewRequest | None]:
        """Return all in flight by its id, in the frontend's order; None for what was in the last message."""
        newcomers: dict[str, NewRequest] = {}
        return {id_: newcomers.get(id_) for id_ in self.link.receive(newcomers.__setitem__)}

    def exchange(self, requests: Any) -> dict[str, NewRequest | None]:
        self.send(message(requests))
        return self.receive()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.ours.close()
    pair.theirs.close()


def test_rows_and_headers_are_read_as_torchserve_reads_them(pair: Pair, monkeypatch: Patch) -> None:
    monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", "false")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(message(REQUESTS))
        processors, rows, ids = Service.retrieve_data_for_inference(retrieve_msg(theirs)[1])
    ours_read = pair.exchange(REQUESTS)
    assert list(ours_read) == list(ids.values())
    for read, row, processor in zip(ours_read.values(), rows, processors, strict=True):
        assert read is not None
        assert (read.row, read.headers) == (row, processor.get_request_properties())
    # They come again with the next message, and are passed over.
    again = pair.exchange({**REQUESTS, "e": ({}, b"new")})
    assert [id_ for id_, sent in again.items() if sent is not None] == ["e"]


@pytest.mark.parametrize("name", ["{}", "same"])
def test_form_of_many_fields_is_passed_over_kept_in_part_and_rejected(pair: Pair, name: str) -> None:
    many = [Field(name.format(number), "text/plain", b"value") for number in range(20_000)]
    requests: dict[str, tuple[dict[str, str], Body]] = {"a": ({}, many), "b": ({}, b"small")}
    first, second = pair.exchange(requests).values()
    assert first is not None and len(first.row) < FORM_FIELDS + 10 and len(first.headers) <= FORM_FIELDS + 1
    with pytest.raises(BodyTooLarge, match="more than 200 fields"):
        body_of(first.row, read_headers(first.headers), 10**9)
    assert second is not None and second.row["body"] == b"small"
    again = pair.exchange({**requests, "c": ({}, b"new")})
    assert [sent is not None for sent in again.values()] == [False, False, True]


def test_known_requests_are_passed_over_and_those_that_do_not_come_again_forgotten(pair: Pair) -> None:
    large: dict[str, Any] = {"a": ({}, LARGE), "b": ({}, b"small"), "c": ({}, LARGE[1:])}
    bodies = [sent and sent.row and sent.row["body"] for sent in pair.exchange(large).values()]
    assert bodies == [LARGE, b"small", LARGE[1:]]
    second = pair.exchange({"a": large["a"], "c": large["c"], "d": ({}, b"new")})
    assert [(id_, sent is not None) for id_, sent in second.items()] == [("a", False), ("c", False), ("d", True)]
    third = pair.exchange({"b": large["b"], "d": ({}, b"new")})
    assert [(id_, sent is not None) for id_, sent in third.items()] == [("b", True), ("d", False)]
    assert pair.exchange({}) == {}
    assert all(pair.exchange({"d": ({}, b"new")}).values())


def test_replies_are_written_as_torchserve_writes_them(pair: Pair, tmp_path: Path) -> None:
    responses = {
        "a": Response(200, b"\x00\xff" * 100, "application/octet-stream", {"Server-Timing": "total;dur=1"}),
        "b": Response(503, b'{"code": 503}', headers={"Retry-After": "1", "X": "grüß"}),
        "c": Response(422, b""),
    }
    ctx = context(tmp_path, {}, batch_size=4)
    pair.send(message({id_: ({}, b"") for id_ in "abc"}))
    ctx.request_processor = Service.retrieve_data_for_inference(retrieve_msg(pair.theirs)[1])[0]
    ids = dict(enumerate(responses))
    bodies = [respond(ctx, index, responses[id_]) for index, id_ in ids.items()]
    pair.link.send(responses)
    pair.link.send({})
    with pair.ours.makefile("rb") as stream:
        written, none = read_answers(stream), read_answers(stream)
    expected = read_answers(BytesIO(create_predict_response(bodies, ids, "", 200, ctx)))
    # TorchServe's context has the content type among the headers too.
    with_type = {id_: {"content-type": each.content_type, **each.headers} for id_, each in written.items()}
    assert ({id_: each._replace(headers=with_type[id_]) for id_, each in written.items()}, none) == (expected, {})


def test_frontend_that_is_gone_is_noticed_in_both_directions(pair: Pair) -> None:
    pair.ours.close()
    with pytest.raises(Disconnected):
        pair.receive()
    with pytest.raises(Disconnected):
        for _ in range(1000):
            pair.link.send({"a": Response(200, b"x" * 100_000)})


@pytest.mark.parametrize(
    "messages",
    [[b"L"], [message(REQUESTS)[2:]], [message(REQUESTS), message({**REQUESTS, "a": ({}, b"shorter")})]],
    ids=["no prediction", "a byte short", "a known request of another length"],
)
def test_message_that_makes_no_sense_is_an_error(pair: Pair, messages: list[bytes]) -> None:
    *good, broken = messages
    for each in good:
        pair.send(each)
        pair.receive()
    pair.send(broken)
    with pytest.raises(ProtocolError):
        pair.receive()
