"""The fuzzer finds what it is for: each way in which an answer can be wrong, and whose request brought it about."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from handlers.protocol.grpc_status import PROTOBUF
from tests.fuzz import bodies, in_process
from tests.fuzz.checks import Received, differ, problems
from tests.fuzz.child import no_note
from tests.fuzz.kinds import KINDS
from tests.fuzz.outcome import Outcome, Usage
from tests.fuzz.report import keep, lines
from tests.fuzz.run import Fuzzer, Target, batches_from
from tests.fuzz.sent import Sent, body, from_json, http, to_json
from tests.fuzz.values import CANARY

KIND = KINDS["language_id"]
ERROR = {"code": 422, "type": "CorruptInput", "message": "The JPEG data is truncated or broken."}


def received(status: int, document: Any) -> Received:
    return Received(status, "application/json", {}, json.dumps(document).encode(), 0.01)


def by_grpc(status: int, message: bytes, headers: dict[str, str] | None = None) -> Received:
    return Received(status, PROTOBUF, headers or {}, message, 0.01)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (received(200, [{"label": "en", "score": 0.9}]), None),
        (received(422, ERROR), None),
        (received(400, {"error": "A tensor must have a name."}), None),
        (received(200, {"predictions": [[], {"error": ERROR}]}), None),
        (received(500, {**ERROR, "code": 500}), "status 500"),
        (received(502, {**ERROR, "code": 502}), "status 502"),
        (received(504, {**ERROR, "code": 504}), "status 504"),
        (received(422, {**ERROR, "message": f"Not {CANARY}."}), "a message that quotes the payload"),
        (received(422, {**ERROR, "message": "x" * 5000}), "a message of more than 3000 characters"),
        (received(422, {"message": "x"}), "an error with other fields: message"),
        (received(422, [1]), "an error without {code, type, message}"),
        (received(422, {**ERROR, "message": ""}), "no message"),
        (
            received(200, {"predictions": [{"error": {**ERROR, "type": "InternalError"}}]}),
            "InternalError (422) for an item",
        ),
        (
            received(200, {"outputs": [{"name": "error", "data": ["", json.dumps({**ERROR, "type": "OutOfMemory"})]}]}),
            "OutOfMemory (422) for an item",
        ),
        (Received(200, "", {}, b'{"score": NaN}', 0.01), "an answer that is no JSON"),
        (Received(200, "", {}, b"error", 0.01), "an answer that is no JSON"),
        (by_grpc(200, b"\x0a\x01M\x2a\x10\x0a\x05label\x12\x05BYTES\x1a\x00\x32\x05\1\0\0\0a"), None),
        (by_grpc(200, b"\x0a"), "an answer that is no JSON"),
        (by_grpc(200, b"\x0a\x01M\x2a\x09\x0a\x05error\x1a\x00"), "an answer that is no JSON"),
        (by_grpc(400, b"", {"X-Grpc-Status": "3", "X-Grpc-Message": "No."}), None),
        (by_grpc(400, b"", {"X-Grpc-Status": "3", "X-Grpc-Message": CANARY}), "a message that quotes the payload"),
        (by_grpc(400, b"No.", {"X-Grpc-Status": "3", "X-Grpc-Message": "No."}), "an answer that is no JSON"),
        (by_grpc(400, b""), "an answer that is no JSON"),
        (by_grpc(500, b"", {"X-Grpc-Status": "13", "X-Grpc-Message": "No."}), "status 500"),
        (received(200, "x" * 7_000_000), "an answer of more than 6553500 bytes"),
    ],
)
def test_problems_name_what_is_wrong_with_an_answer(answer: Received, problem: str | None) -> None:
    found = list(problems(body(b"x"), answer, is_adaptive=False))
    assert problem in found if problem else not found


@pytest.mark.parametrize(
    ("left", "right", "is_other"),
    [
        (received(200, [{"label": "en", "score": 0.5}]), received(200, [{"label": "en", "score": 0.5001}]), False),
        (received(200, [{"label": "en", "score": 0.5}]), received(200, [{"label": "en", "score": 0.6}]), True),
        (received(200, [{"label": "en", "score": 0.5}]), received(200, [{"label": "fr", "score": 0.5}]), True),
        (received(200, [1.0]), received(200, [1.0, 2.0]), True),
        (received(200, [1.0]), received(503, ERROR), True),
        (received(422, ERROR), received(422, {**ERROR, "type": "EmptyInput"}), True),
    ],
)
def test_differ_takes_the_last_digits_of_scores_for_the_same(
    left: Received, right: Received, *, is_other: bool
) -> None:
    assert differ(KIND, left, right) == is_other


class Wrong:
    """A real handler behind something that spoils what it is told to."""

    is_adaptive = is_served = False

    def __init__(self, target: Target, seed: int, spoils: str, victim: int) -> None:
        self._target, self._spoils = target, spoils
        self._victim = bodies.request(KIND, seed, victim)

    def answers(self, batch: Sequence[Sent], *, decodes: bool) -> list[Received]:
        answers = self._target.answers(batch, decodes=decodes)
        if self._victim not in batch:
            return answers
        if self._spoils == "raises":
            raise LookupError("a bug")
        if self._spoils == "slow":
            return [answer._replace(seconds=60.0) for answer in answers]
        if self._spoils == "crossed":
            return [*answers[1:], answers[0]]
        return [
            answer._replace(status=500) if sent is self._victim else answer
            for sent, answer in zip(batch, answers, strict=True)
        ]

    def usage(self) -> Usage:
        return self._target.usage()


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with in_process.started("language_id", "classic") as started:
        yield started


@pytest.mark.parametrize(
    ("spoils", "problem"),
    [
        ("raises", "the whole batch fails: LookupError"),
        ("slow", "more than 5.0 s for an answer"),
        ("crossed", "a neighbour's answer changed (200)"),
    ],
)
def test_fuzzer_finds_whose_request_it_was(target: Target, spoils: str, problem: str) -> None:
    fuzzer = Fuzzer(KIND, Wrong(target, 3, spoils, 17), 3, "classic", no_note)
    outcome = fuzzer.run(batches_from(0), lambda sent: sent / 30)
    found = [(finding.number, finding.problem) for finding in outcome.findings]
    assert (10 if spoils == "crossed" else 17, problem) in found
    assert all(10 <= number < 20 for number, _ in found)
    (line, *_) = lines(outcome, 3)
    assert "python -m tests.fuzz --task language_id --seed 3 --only 1" in line


def test_outcome_is_the_same_when_read_again(target: Target) -> None:
    outcome = Fuzzer(KIND, Wrong(target, 3, "raises", 17), 3, "classic", no_note).run(batches_from(0), lambda n: n / 20)
    assert Outcome.of(outcome.to_json()).to_json() == outcome.to_json()


@pytest.mark.parametrize("task", list(KINDS))
def test_requests_of_a_seed_are_the_same_and_survive_their_files(task: str) -> None:
    kind = KINDS[task]
    for number in range(60):
        sent = bodies.request(kind, 5, number)
        assert bodies.request(kind, 5, number) == sent
        read = from_json(json.loads(json.dumps(to_json(sent))))
        assert (read.parts, read.form, dict(read.headers), read.wire) == (
            sent.parts,
            sent.form,
            sent.headers,
            sent.wire,
        )
        http(sent)
    assert bodies.request(kind, 6, 0) != bodies.request(kind, 5, 0)


def test_keep_writes_small_requests_alone(tmp_path: Any) -> None:
    small = keep("language_id", 1, 3, "status 500", tmp_path)
    assert small is not None
    assert from_json(json.loads(small.read_text())).parts == bodies.request(KIND, 1, 3).parts
