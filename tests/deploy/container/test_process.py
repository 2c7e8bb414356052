"""What a node's process knows and does: when it is ready, when it has drained, and what of the logs it prints."""

import io
import threading
from pathlib import Path
from typing import Any

import pytest

from deploy.container.drain import DRAINED, DRAINING, MARK, SERVING, STATE, Drain, State, drain
from deploy.container.health import Health, Watch, health
from deploy.container.logs import Follow
from tests.waiting import until
from torchserve_client.errors import Unreachable

NOTICE_S, LIMIT_S = 5.0, 60.0


def over_at(requests: dict[int, tuple[int, int]]) -> int:
    """The second at which it is over, by (in flight, arrived ever) from each second on."""
    begun = Drain(100.0, NOTICE_S)
    seen = (0, 0)
    for second in range(200):
        seen = requests.get(second, seen)
        if begun.is_over(100.0 + second, in_flight=seen[0], arrived=seen[1], limit_s=LIMIT_S):
            return second
    raise AssertionError


@pytest.mark.parametrize(
    ("requests", "second"),
    [
        ({}, 5),
        # Edges have not all seen it: requests come until the notice is over, and a second must pass without any.
        ({second: (0, second) for second in range(6)}, 6),
        # An answer that takes its time.
        ({0: (3, 7), 20: (0, 7)}, 20),
        # A client that does not look at health sends on: given up when an answer may take no longer.
        ({second: (0, second) for second in range(200)}, 66),
        ({0: (1, 1)}, 66),
    ],
    ids=["idle", "until edges see it", "long answer", "sends on", "no answer"],
)
def test_node_has_drained(requests: dict[int, tuple[int, int]], second: int) -> None:
    assert over_at(requests) == second


def test_drain_waits_until_the_process_has_drained_and_returns_at_once_the_second_time(tmp_path: Path) -> None:
    State.of_this(SERVING).write(tmp_path)
    said: list[str] = []
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(drain(tmp_path, said.append)))
    waiting.start()
    until((tmp_path / MARK).exists, every_s=0.01)
    State.of_this(DRAINING, 2).write(tmp_path)
    until(lambda: said, every_s=0.01)
    assert not answers
    State.of_this(DRAINED).write(tmp_path)
    waiting.join(60)
    assert (answers, said) == ([True], ["2 requests in flight"])
    assert drain(tmp_path, said.append)
    # What was given up is not all answered.
    State.of_this(DRAINED, 1).write(tmp_path)
    assert not drain(tmp_path, said.append)


@pytest.mark.parametrize("left", ['{"pid": 1, "created": 0.0, "phase": "serving"}', "{"])
def test_drain_without_a_node_is_an_error(tmp_path: Path, left: str) -> None:
    """What a container that was started anew finds of the one before is no node."""
    (tmp_path / STATE).write_text(left)
    with pytest.raises(FileNotFoundError, match="no node runs"):
        drain(tmp_path, lambda _: None)


def described(ready: int, workers: int, timeout_s: int = 120) -> dict[str, Any]:
    return {
        "modelName": "m",
        "modelVersion": "1.0",
        "minWorkers": workers,
        "responseTimeout": timeout_s,
        "workers": [{"status": "READY" if each < ready else "UNLOADING"} for each in range(max(ready, workers))],
    }


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([], "ready"),
        ([described(1, 1, 90), described(2, 2, 30)], "ready"),
        ([described(1, 1), described(1, 2)], "m 1.0: 1 of 2 workers READY"),
        # Scaled to none it answers nobody.
        ([described(0, 0)], "m 1.0: 0 of 1 workers READY"),
    ],
)
def test_node_is_ready_where_all_workers_of_all_models_are(models: list[dict[str, Any]], words: str) -> None:
    found = health(models)
    assert (found.is_ready, found.words) == (words == "ready", words)
    assert found.response_timeout_s == max([each["responseTimeout"] for each in models], default=0)


def test_what_was_known_stays_while_torchserve_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.container.health.LOOK_S", 0.01)
    asked, answers = threading.Semaphore(0), threading.Event()
    looks = 0

    def look() -> Health:
        nonlocal looks
        looks += 1
        if looks == 1:
            return health([described(1, 1)])
        asked.release()
        if looks == 2:
            raise Unreachable("no answer")
        answers.wait(60)
        return health([described(0, 1)])

    watch = Watch(look)
    assert watch.health.words == "starting"
    watch.start()
    # The second of these stands in the middle of its question.
    assert asked.acquire(timeout=60)
    assert asked.acquire(timeout=60)
    assert watch.health.is_ready
    answers.set()
    until(lambda: not watch.health.is_ready, every_s=0.01)
    watch.stop()


def test_lines_that_are_added_to_logs_are_printed_once_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.container.logs.LOOK_S", 0.01)
    old, new, out = tmp_path / "old.log", tmp_path / "new.log", io.BytesIO()
    old.write_bytes(b"of the last process\n")
    follow = Follow([old, new], out)
    follow.start()
    new.write_bytes(b"first\nsec")
    until(lambda: out.getvalue() == b"first\n", every_s=0.01)
    with new.open("ab") as file:
        file.write(b"ond\n")
    until(lambda: out.getvalue() == b"first\nsecond\n", every_s=0.01)
    # The file was put aside, and another has its name.
    new.rename(tmp_path / "new.1.log")
    new.write_bytes(b"third\n")
    until(lambda: out.getvalue().endswith(b"third\n"), every_s=0.01)
    with old.open("ab") as file:
        file.write(b"last\n")
    follow.stop()
    assert out.getvalue() == b"first\nsecond\nthird\nlast\n"
