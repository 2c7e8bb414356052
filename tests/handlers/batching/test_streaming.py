"""Answers that are streamed: what a client sees of them, and what the frontend does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handlers.batching.engine import LatencyModel, Streams
from handlers.batching.in_flight import InFlightRequest, StreamedAnswer
from handlers.batching.policy import Policy
from handlers.batching.scheduler import Scheduler
from handlers.batching.shared_state import SharedState
from handlers.batching.timing import Timing
from handlers.metrics import Recorder
from handlers.pipeline.slots import Generated, Slot
from handlers.protocol.requests import Request
from tests.handlers.batching.frontend import Frontend
from tests.handlers.batching.gated import TIMEOUT_S, state, wait_for
from tests.handlers.batching.spelling import FAILURE, FICKLE, UNREADABLE, SpellingHandler, asking, events, started

TEXT = "abcdefghij"


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[SpellingHandler]:
    handler = started(tmp_path)
    yield handler
    handler.speller.go()
    handler.wait_until_idle()


def joined(body: bytes) -> tuple[str, Any]:
    """Return the pieces of a stream joined, and the data of its last event."""
    *pieces, (kind, last) = events(body)
    assert kind == "message"
    assert all(kind == "message" and data.keys() == {"text"} and data["text"] for kind, data in pieces)
    return "".join(data["text"] for _, data in pieces), last


def test_streamed_answer_comes_in_chunks_as_it_is_generated(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        handler.speller.hold()
        stream, answer = frontend.stream(asking(TEXT, stream=True))
        for count in range(1, 5):
            handler.speller.step()
            assert stream.wait(count)[-1] == b'data: {"text":"' + TEXT[count - 1].encode() + b'"}\n\n'
        assert not answer.done()
        handler.speller.go()
        whole = answer.result(TIMEOUT_S)
    assert (whole.status, joined(whole.body)) == (200, (TEXT, {"spelled": TEXT}))
    assert stream.headers["content-type"] == "text/event-stream"
    assert stream.headers["Cache-Control"] == "no-cache"
    assert "total;dur=" in stream.headers["Server-Timing"]
    assert handler.speller.batches == [[TEXT]]


@pytest.mark.parametrize(
    ("accept", "options", "is_streamed"),
    [
        ("text/event-stream", {}, True),
        ("application/json;q=0.5, text/event-stream; q=0.9", {}, True),
        ("*/*", {}, False),
        ("text/event-stream", {"stream": False}, False),
    ],
)
def test_answer_is_streamed_where_accept_or_the_option_asks_for_it(
    handler: SpellingHandler, accept: str, options: dict[str, Any], is_streamed: bool
) -> None:
    with Frontend(handler) as frontend:
        stream, answer = frontend.stream(asking(TEXT, **options), accept=accept)
        whole = answer.result(TIMEOUT_S)
    if is_streamed:
        assert joined(whole.body) == (TEXT, {"spelled": TEXT})
    else:
        assert whole.body == {"spelled": TEXT}
        assert not stream.chunks


def test_answer_that_is_whole_before_its_first_chunk_is_one_plain_reply_of_all_events(
    handler: SpellingHandler,
) -> None:
    with Frontend(handler) as frontend:
        for _ in range(50):
            _, answer = frontend.stream(asking("a", stream=True))
            whole = answer.result(TIMEOUT_S)
            # The double fails where a first message is a last chunk.
            assert joined(whole.body) == ("a", {"spelled": "a"})
            assert whole.headers["content-type"] == "text/event-stream"


def test_error_before_the_first_piece_is_a_plain_answer_with_its_status(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        _, answer = frontend.stream(asking(FAILURE + TEXT, stream=True))
        failed = answer.result(TIMEOUT_S)
    told = (failed.status, failed.body["type"], failed.headers["content-type"])
    assert told == (500, "InternalError", "application/json")


@pytest.mark.parametrize("bad", [FAILURE, UNREADABLE])
def test_error_in_the_middle_is_an_event_and_ends_the_stream(handler: SpellingHandler, bad: str) -> None:
    with Frontend(handler) as frontend:
        handler.speller.hold()
        stream, answer = frontend.stream(asking("abc" + bad + "defgh", stream=True))
        handler.speller.step(3)
        wait_for(lambda: b'c"' in b"".join(stream.chunks))
        handler.speller.go()
        whole = answer.result(TIMEOUT_S)
        assert frontend.send(asking("next")).body == {"spelled": "next"}
    *pieces, (kind, error) = events(whole.body)
    assert "".join(data["text"] for _, data in pieces) == "abc"
    assert (kind, error["code"], error["type"]) == ("error", 500, "InternalError")


@pytest.mark.parametrize("text", [TEXT, "ab" + FICKLE + "defghij"])
def test_stream_in_a_micro_batch_that_fails_goes_on_where_it_was_or_ends_where_its_second_run_differs(
    handler: SpellingHandler, text: str
) -> None:
    with Frontend(handler) as frontend:
        handler.speller.hold()
        busy = frontend.submit(asking("busy"))
        handler.wait()
        bad = frontend.submit(asking("abcdef" + FAILURE))
        stream, answer = frontend.stream(asking(text, stream=True))
        handler.wait(waiting=2)
        handler.speller.step(4 + 4)
        assert busy.result(TIMEOUT_S).status == 200
        wait_for(lambda: b'd"' in b"".join(stream.chunks))
        handler.speller.go()
        assert bad.result(TIMEOUT_S).status == 500
        whole = answer.result(TIMEOUT_S)
    assert len(handler.speller.batches) > 2
    if text == TEXT:
        assert joined(whole.body) == (TEXT, {"spelled": TEXT})
    else:
        *_, (kind, error) = events(whole.body)
        assert (kind, error["code"]) == ("error", 500)


def test_client_that_leaves_frees_its_place_and_its_share_of_the_engine(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        handler.speller.hold()
        stream, answer = frontend.stream(asking(TEXT * 100, stream=True))
        handler.speller.step()
        stream.wait(1)
        stream.leave()
        handler.speller.step()
        # TorchServe sees with the next chunk that its client is gone, and sends the request no more.
        assert stream.is_dropped.wait(TIMEOUT_S)
        # The worker learns of it with the next exchange, for which somebody has to come where there is nothing else.
        following = frontend.submit(asking("next"))
        handler.wait(waiting=1)
        assert state(handler).in_flight == 1
        handler.speller.go()
        assert following.result(TIMEOUT_S).body == {"spelled": "next"}
        assert not answer.done()
    # The engine ends it in its next step, and runs who waits.
    assert handler.speller.written <= 3 + len("next")


def test_client_that_has_gone_is_sent_no_piece_that_was_generated_before() -> None:
    """A chunk for a request that the frontend has forgotten would end the worker."""
    scheduler = Scheduler(Policy(max_latency_s=1.0, max_items=8), Streams(LatencyModel([(1, 0.1), (8, 0.4)])))
    shared = SharedState(scheduler, Timing(8, has_target=True), Recorder())
    slot = Slot(None, generated=Generated(pieces=None, tokens=[1, 2]))  # type: ignore[arg-type]
    request = InFlightRequest(id="a", request=Request(()), slots=[slot], arrived_s=0.0)
    request.stream, request.running = StreamedAnswer(has_begun=True), 1
    with shared.lock:
        shared.received(["a"], [request], 0.0)
        shared.pieces[request] = slot
        shared.received([], [], 0.0)
        assert shared.take_due(with_refused=True).tokens == []
    assert request.stream.is_abandoned


TENSORS = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}


def test_stream_of_what_is_not_one_text_over_http_is_refused(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        several = json.dumps({"instances": [{"text": "a"}, {"text": "b"}], "stream": True}).encode()
        tensors = json.dumps({**TENSORS, "parameters": {"stream": True}}).encode()
        refused = [
            frontend.stream(several)[1].result(TIMEOUT_S),
            frontend.stream(b'{"instances": [{"text": "a"}]}', Accept="text/event-stream")[1].result(TIMEOUT_S),
            frontend.stream(tensors)[1].result(TIMEOUT_S),
            # TorchServe's own gRPC.
            frontend.send(asking(TEXT, stream=True)),
        ]
    for answer, reason in zip(refused, ("no list", "no list", "no tensors", "HTTP"), strict=True):
        assert answer.status == 400
        assert reason in json.dumps(answer.body)
