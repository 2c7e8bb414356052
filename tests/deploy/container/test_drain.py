"""When a node has drained, in simulated time; and what the preStop hook and the process tell each other."""

import threading
import time
from pathlib import Path

import pytest

from deploy.container.drain import DRAINED, DRAINING, MARK, SERVING, STATE, Drain, State, drain

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
        # Somebody who does not look at health sends on: given up when an answer may take no longer.
        ({second: (0, second) for second in range(200)}, 66),
        ({0: (1, 1)}, 66),
    ],
    ids=["idle", "until edges see it", "long answer", "sends on", "no answer"],
)
def test_node_has_drained(requests: dict[int, tuple[int, int]], second: int) -> None:
    assert over_at(requests) == second


def test_drain_waits_until_the_process_says_so_and_is_done_at_once_the_second_time(tmp_path: Path) -> None:
    State.of_this(SERVING).write(tmp_path)
    said: list[str] = []
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(drain(tmp_path, said.append)))
    waiting.start()
    deadline = time.monotonic() + 10
    while not (tmp_path / MARK).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    State.of_this(DRAINING, 2).write(tmp_path)
    while not said:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not answers
    State.of_this(DRAINED).write(tmp_path)
    waiting.join(10)
    assert (answers, said) == ([True], ["2 requests in flight"])
    assert drain(tmp_path, said.append)


def test_drain_says_what_was_given_up(tmp_path: Path) -> None:
    State.of_this(DRAINED, 1).write(tmp_path)
    assert not drain(tmp_path, lambda _: None)


@pytest.mark.parametrize("left", [None, '{"pid": 1, "created": 0.0, "phase": "serving"}', "{", "[]"])
def test_drain_without_a_node_says_so(tmp_path: Path, left: str | None) -> None:
    """What a container that was started anew finds of the one before is no node."""
    if left is not None:
        (tmp_path / STATE).write_text(left)
    with pytest.raises(FileNotFoundError, match="no node runs"):
        drain(tmp_path, lambda _: None)
