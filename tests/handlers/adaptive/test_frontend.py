"""The bytes between frontend and worker: as TorchServe's own reader and writer have them, in any pieces."""

import socket
import threading
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ts.protocol.otf_message_handler import create_predict_response, retrieve_msg
from ts.service import Service

from handlers.adaptive.frontend import CHUNK_BYTES, Disconnected, Door, Inbox, Link, ProtocolError, Sent
from handlers.pipeline.runner import respond
from handlers.protocol.responses import Reply
from tests.handlers.adaptive.frontend import message, read_answers
from tests.handlers.serving import context

REQUESTS = {
    "a": ({"X-Priority": "1", "Accept": "*/*"}, b'{"text": "one"}'),
    "b": ({}, b""),
    "c": ({"accept-language": "grüß"}, bytes(range(256)) * 8),
}
LARGE = bytes(range(251)) * (3 * CHUNK_BYTES // 251)


class Pair:
    """A link, and the frontend's end of it."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.link = Link(self.theirs)

    def send(self, data: bytes) -> None:
        threading.Thread(target=self.ours.sendall, args=(data,), daemon=True).start()


def received(pair: Pair, door: Door = lambda *_: True) -> dict[str, Sent | None]:
    """Everything in flight by its id, in the frontend's order; None for what was in the last message."""
    newcomers: dict[str, Sent] = {}
    ids = pair.link.receive(door, newcomers.__setitem__)
    return {id_: newcomers.get(id_) for id_ in ids}


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.ours.close()
    pair.theirs.close()


def test_link_passes_over_the_body_of_who_is_turned_away_and_knows_it_from_then_on(pair: Pair) -> None:
    requests = {"a": ({"x": "1"}, LARGE), "b": ({}, b"small"), "c": ({"x": "2"}, b"c" * 70)}
    asked: list[tuple[str, Any]] = []

    def door(id_: str, headers: Any) -> bool:
        asked.append((id_, dict(headers)))
        return "x" not in headers

    for _ in range(2):
        pair.send(message(requests))
        came = received(pair, door)
        assert list(came) == ["a", "b", "c"]
        if any(came.values()):
            assert [sent and sent.row for sent in came.values()] == [None, {"body": b"small"}, None]
        assert asked == [
            ("a", {"x": "1", "body": {"content-type": ""}}),
            ("b", {"body": {"content-type": ""}}),
            ("c", {"x": "2", "body": {"content-type": ""}}),
        ]


def test_link_reads_rows_and_headers_as_torchserve_does(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", "false")
    sent = message(REQUESTS)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(sent)
        processors, rows, ids = Service.retrieve_data_for_inference(retrieve_msg(theirs)[1])
    pair.send(sent)
    ours_read = received(pair)
    assert list(ours_read) == list(ids.values())
    for read, row, processor in zip(ours_read.values(), rows, processors, strict=True):
        assert read is not None
        assert (read.row, read.headers) == (row, processor.get_request_properties())


def test_link_passes_over_requests_that_it_knows_and_forgets_those_that_do_not_come_again(pair: Pair) -> None:
    pair.send(message(REQUESTS))
    assert all(received(pair).values())
    d: tuple[dict[str, str], bytes] = ({}, b"new")
    pair.send(message({"a": REQUESTS["a"], "c": REQUESTS["c"], "d": d}))
    second = received(pair)
    assert [(id_, sent is not None) for id_, sent in second.items()] == [("a", False), ("c", False), ("d", True)]
    pair.send(message({"b": REQUESTS["b"], "d": d}))
    assert [(id_, sent is not None) for id_, sent in received(pair).items()] == [("b", True), ("d", False)]
    pair.send(message({}))
    assert received(pair) == {}
    # What was forgotten is read anew.
    pair.send(message({"d": d}))
    assert all(received(pair).values())


def test_link_reads_and_passes_over_bodies_larger_than_its_buffer(pair: Pair) -> None:
    large: dict[str, tuple[dict[str, str], bytes]] = {"a": ({}, LARGE), "b": ({}, b"small"), "c": ({}, LARGE[1:])}
    pair.send(message(large))
    assert [sent and sent.row and sent.row["body"] for sent in received(pair).values()] == [LARGE, b"small", LARGE[1:]]
    pair.send(message({**large, "d": ({}, b"new")}))
    *known, new = received(pair).values()
    assert known == [None] * 3
    assert new is not None and new.row is not None
    assert new.row["body"] == b"new"


@given(st.lists(st.integers(1, 7), min_size=1), st.binary(max_size=40))
def test_inbox_gives_the_same_in_any_pieces(sizes: list[int], body: bytes) -> None:
    data = message({"id": ({"name": "value"}, body)})
    position = calls = 0

    def receive_into(buffer: memoryview) -> int:
        nonlocal position, calls
        piece = data[position : position + sizes[calls % len(sizes)]]
        buffer[: len(piece)] = piece
        position += len(piece)
        calls += 1
        return len(piece)

    inbox = Inbox(receive_into)
    assert inbox.take(1) == b"I"
    assert [inbox.take(inbox.integer()) for _ in range(3)] == [b"id", b"name", b"value"]
    assert inbox.integer() == -1
    inbox.skip(4 + len(b"body") + 4)
    assert inbox.take(inbox.integer()) == body
    assert [inbox.integer(), inbox.integer()] == [-1, -1]
    with pytest.raises(Disconnected):
        inbox.take(1)


@pytest.mark.parametrize(
    "replies",
    [
        {},
        {"a": Reply(200, b"{}")},
        {
            "a": Reply(200, b"\x00\xff" * 100, "application/octet-stream", {"Server-Timing": "total;dur=1"}),
            "b": Reply(503, b'{"code": 503}', headers={"Retry-After": "1", "X": "grüß"}),
            "c": Reply(422, b""),
        },
    ],
)
def test_link_writes_what_torchserve_does(pair: Pair, replies: dict[str, Reply], tmp_path: Any) -> None:
    ctx = context(tmp_path, {}, batch_size=4)
    pair.send(message({id_: ({}, b"") for id_ in "abc"}))
    ctx.request_processor = Service.retrieve_data_for_inference(retrieve_msg(pair.theirs)[1])[0]
    ids = dict(enumerate(replies))
    bodies = [respond(ctx, index, replies[id_]) for index, id_ in ids.items()]
    pair.link.send(replies)
    with pair.ours.makefile("rb") as stream:
        received = read_answers(stream)
    expected = read_answers(BytesIO(create_predict_response(bodies, ids, "", 200, ctx)))
    # TorchServe's context has the content type among the headers too.
    with_type = {id_: {"content-type": each.content_type, **each.headers} for id_, each in received.items()}
    assert {id_: each._replace(headers=with_type[id_]) for id_, each in received.items()} == expected


def test_link_whose_frontend_is_gone_says_so(pair: Pair) -> None:
    pair.ours.close()
    with pytest.raises(Disconnected):
        received(pair)
    with pytest.raises(Disconnected):
        for _ in range(1000):
            pair.link.send({"a": Reply(200, b"x" * 100_000)})


@pytest.mark.parametrize("data", [b"L", message(REQUESTS)[1:], message(REQUESTS)[2:]])
def test_link_that_gets_no_prediction_does_not_guess(pair: Pair, data: bytes) -> None:
    pair.send(data)
    with pytest.raises(ProtocolError):
        received(pair)


def test_link_whose_known_request_has_another_length_does_not_guess(pair: Pair) -> None:
    pair.send(message(REQUESTS))
    received(pair)
    pair.send(message({**REQUESTS, "a": ({}, b"shorter")}))
    with pytest.raises(ProtocolError):
        received(pair)
