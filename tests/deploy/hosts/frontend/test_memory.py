"""The budget of memory: who is rejected, and who gives way."""

import pytest

from deploy.hosts.frontend import memory
from deploy.hosts.frontend.memory import Hold, Memory


def test_request_without_memory_is_rejected_and_a_client_that_is_slow_for_long_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget, given_up = Memory(100), list[str]()
    now_s = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    first, second, complete = Hold(budget), Hold(budget), Hold(budget)
    first.wait(lambda: given_up.append("first"))
    second.wait(lambda: given_up.append("second"))
    # Clients that are waited for leave a quarter to others.
    assert [first.take(60), second.take(16), second.take(15), complete.take(25)] == [True, False, True, True]
    # For a while the newest is rejected: many uploads at once do not end each other.
    assert (complete.take(1), given_up, budget.held_bytes) == (False, [], 100)
    now_s[0] = memory.PATIENCE_S
    assert (complete.take(1), given_up, budget.held_bytes) == (True, ["first"], 41)
    assert (first.is_given_up, first.size, second.is_given_up) == (True, 0, False)
    # One that goes on waits no longer, and what runs never gives way.
    second.go_on()
    assert (Hold(budget).take(60), given_up) == (False, ["first"])
    for each in (first, second, complete):
        each.free()
    assert (budget.held_bytes, budget.waiting) == (0, {})
