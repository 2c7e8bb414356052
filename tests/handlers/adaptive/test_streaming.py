"""Answers that are streamed: what a client sees of them, and what the frontend does."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handlers.adaptive.response_timing import TUNING
from handlers.adaptive.shared_state import State
from tests.handlers.adaptive.frontend import Frontend
from tests.handlers.adaptive.gated import TIMEOUT_S, wait_for
from tests.handlers.adaptive.spelling import (
    FAILURE,
    FICKLE,
    UNREADABLE,
    SpellingHandler,
    asking,
    events,
    started,
)

TEXT = "abcdefghij"
EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[SpellingHandler]:
    handler = started(tmp_path)
    yield handler
    handler.speller.go()


def forgets(handler: SpellingHandler) -> bool:
    return bool(handler.worker.state == State(0, 0, 0, 0))


def joined(body: bytes) -> tuple[str, Any]:
    """The pieces of a stream joined, and the data of its last event."""
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
    assert forgets(handler)


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json;q=0.5, text/event-stream; q=0.9"])
def test_answer_is_streamed_where_accept_asks_for_it(handler: SpellingHandler, accept: str) -> None:
    with Frontend(handler) as frontend:
        handler.speller.pace_s = 0.005
        _, answer = frontend.stream(TEXT.encode(), accept=accept)
        assert joined(answer.result(TIMEOUT_S).body) == (TEXT, {"spelled": TEXT})


@pytest.mark.parametrize(
    ("accept", "options"),
    [("*/*", {}), ("text/event-stream;q=0", {}), ("text/event-stream", {"stream": False}), ("text/html", {})],
)
def test_answer_is_plain_where_nobody_asks_for_a_stream(
    handler: SpellingHandler, accept: str, options: dict[str, Any]
) -> None:
    with Frontend(handler) as frontend:
        stream, answer = frontend.stream(asking(TEXT, **options), Accept=accept)
        assert answer.result(TIMEOUT_S).body == {"spelled": TEXT}
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


def test_plain_and_streamed_requests_share_a_micro_batch(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        handler.speller.hold()
        busy = frontend.submit(asking("busy"))
        wait_for(lambda: handler.worker.state.running_batches == 1)
        plain = frontend.submit(asking("plain"))
        _, streamed = frontend.stream(asking(TEXT, stream=True))
        wait_for(lambda: handler.worker.state.waiting_items == 2)
        handler.speller.go()
        assert busy.result(TIMEOUT_S).body == {"spelled": "busy"}
        assert plain.result(TIMEOUT_S).body == {"spelled": "plain"}
        assert joined(streamed.result(TIMEOUT_S).body) == (TEXT, {"spelled": TEXT})
    assert [sorted(batch) for batch in handler.speller.batches] == [["busy"], [TEXT, "plain"]]
    assert forgets(handler)


def test_pieces_of_a_quick_engine_are_sent_together_and_exchanges_stay_few(handler: SpellingHandler) -> None:
    text = "ab" * 500
    with Frontend(handler) as frontend:
        handler.speller.pace_s = 0.0005
        began_s = time.perf_counter()
        streams = [frontend.stream(asking(text, stream=True)) for _ in range(8)]
        assert all(joined(answer.result(TIMEOUT_S).body)[0] == text for _, answer in streams)
        seconds = time.perf_counter() - began_s
    # One exchange brings the pieces of all; beside them are those that look for newcomers and those of first pieces.
    assert frontend.exchanges <= 2 * seconds / TUNING.piece_s + 30
    assert all(len(stream.chunks) < len(text) / 4 for stream, _ in streams)
    assert forgets(handler)


def test_error_before_the_first_piece_is_a_plain_answer_with_its_status(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        _, answer = frontend.stream(asking(FAILURE + TEXT, stream=True))
        failed = answer.result(TIMEOUT_S)
    assert (failed.status, failed.body["type"], failed.headers["content-type"]) == (
        500,
        "InternalError",
        "application/json",
    )


@pytest.mark.parametrize("bad", [FAILURE, UNREADABLE])
def test_error_in_the_middle_is_an_event_and_ends_the_stream(handler: SpellingHandler, bad: str) -> None:
    with Frontend(handler) as frontend:
        handler.speller.hold()
        stream, answer = frontend.stream(asking("abc" + bad + "defgh", stream=True))
        handler.speller.step(3)
        wait_for(lambda: b'"c"' in b"".join(stream.chunks) or b'c"' in b"".join(stream.chunks))
        handler.speller.go()
        whole = answer.result(TIMEOUT_S)
        assert frontend.send(asking("next")).body == {"spelled": "next"}
    *pieces, (kind, error) = events(whole.body)
    assert "".join(data["text"] for _, data in pieces) == "abc"
    assert (kind, error["code"], error["type"]) == ("error", 500, "InternalError")
    assert forgets(handler)


def test_stream_in_a_micro_batch_that_fails_goes_on_where_it_was(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        handler.speller.hold()
        busy = frontend.submit(asking("busy"))
        wait_for(lambda: handler.worker.state.running_batches == 1)
        bad = frontend.submit(asking("abcdef" + FAILURE))
        stream, answer = frontend.stream(asking(TEXT, stream=True))
        wait_for(lambda: handler.worker.state.waiting_items == 2)
        handler.speller.step(4 + 3)
        assert busy.result(TIMEOUT_S).status == 200
        wait_for(lambda: b"c" in b"".join(stream.chunks))
        handler.speller.go()
        assert bad.result(TIMEOUT_S).status == 500
        assert joined(answer.result(TIMEOUT_S).body) == (TEXT, {"spelled": TEXT})
    assert len(handler.speller.batches) > 2
    assert forgets(handler)


def test_stream_whose_second_run_differs_from_what_was_sent_ends_with_an_error(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        handler.speller.hold()
        busy = frontend.submit(asking("busy"))
        wait_for(lambda: handler.worker.state.running_batches == 1)
        bad = frontend.submit(asking("abcdef" + FAILURE))
        stream, answer = frontend.stream(asking("ab" + FICKLE + "defghij", stream=True))
        wait_for(lambda: handler.worker.state.waiting_items == 2)
        handler.speller.step(4 + 4)
        wait_for(lambda: b"d" in b"".join(stream.chunks).replace(b"data", b""))
        handler.speller.go()
        assert bad.result(TIMEOUT_S).status == 500
        whole = answer.result(TIMEOUT_S)
        assert busy.result(TIMEOUT_S).status == 200
    *_, (kind, error) = events(whole.body)
    assert (kind, error["code"]) == ("error", 500)
    assert forgets(handler)


def test_client_that_leaves_frees_its_place_and_its_share_of_the_engine(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        handler.speller.hold()
        stream, answer = frontend.stream(asking(TEXT * 100, stream=True))
        handler.speller.step()
        stream.wait(1)
        stream.leave()
        handler.speller.step()
        # TorchServe sees with the next chunk that nobody is there, and sends the request no more.
        assert stream.is_dropped.wait(TIMEOUT_S)
        # It tells the worker with the next exchange, for which somebody has to come where there is nothing else.
        following = frontend.submit(asking("next"))
        wait_for(lambda: handler.worker.state.waiting_items == 1)
        assert handler.worker.state.in_flight == 1
        handler.speller.go()
        assert following.result(TIMEOUT_S).body == {"spelled": "next"}
        assert not answer.done()
    # The engine ends it in its next step, and runs who waits.
    assert handler.speller.written <= 3 + len("next")
    assert forgets(handler)


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        ({"instances": [{"text": "a"}, {"text": "b"}], "stream": True}, {}, "no list"),
        ({"instances": [{"text": "a"}]}, EVENTS, "no list"),
        (
            {
                "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}],
                "parameters": {"stream": True},
            },
            {},
            "no tensors",
        ),
    ],
)
def test_stream_of_what_is_not_one_text_is_refused(
    handler: SpellingHandler, body: Any, headers: dict[str, str], reason: str
) -> None:
    with Frontend(handler) as frontend:
        _, answer = frontend.stream(json.dumps(body).encode(), **headers)
        refused = answer.result(TIMEOUT_S)
    assert refused.status == 400
    assert reason in json.dumps(refused.body)


def test_stream_by_torchserves_own_grpc_is_refused(handler: SpellingHandler) -> None:
    with Frontend(handler) as frontend:
        refused = frontend.send(asking(TEXT, stream=True))
    assert (refused.status, "HTTP" in refused.body["message"]) == (400, True)


def test_streamed_request_that_expires_is_answered_plainly(tmp_path: Path) -> None:
    handler = started(tmp_path, queue_timeout_ms=100)
    with Frontend(handler) as frontend:
        handler.speller.hold()
        busy = frontend.submit(asking("busy"))
        wait_for(lambda: handler.worker.state.running_batches == 1)
        _, late = frontend.stream(asking(TEXT, stream=True))
        assert (late.result(TIMEOUT_S).status, late.result().body["type"]) == (504, "QueueTimeout")
        handler.speller.go()
        assert busy.result(TIMEOUT_S).status == 200
    assert forgets(handler)
