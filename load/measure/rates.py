"""Defines throughput, once for each kind of load. Pure.

of_cycles   in a closed loop it is the sum over the clients of their own rate: good answers over the time from the
            client's first send to its last answer. A client sends when its answer has come, so that this time is whole
            cycles and nothing is cut off at either end, although a batching server answers in bursts.
of_window   in an open loop it is the good answers that came within the window, over its length, whenever they were
            asked for: it counts what the server did, not what it was offered.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

from load.measure.exchange import Exchange

# (all exchanges, opens_s, closes_s, which answers count) -> per second
Rate = Callable[[Sequence[Exchange], float, float, Callable[[Exchange], bool]], float]


def of_cycles(
    exchanges: Sequence[Exchange], opens_s: float, _closes_s: float, counts: Callable[[Exchange], bool]
) -> float:
    """Return answers per second as defined above; a client's last request may end, or begin, after the window."""
    good: Counter[int] = Counter()
    first_s: dict[int, float] = {}
    last_s: dict[int, float] = {}
    for each in exchanges:
        if each.due_s < opens_s:
            continue
        good[each.client] += counts(each)
        first_s[each.client] = min(each.sent_s, first_s.get(each.client, inf))
        last_s[each.client] = max(each.answered_s, last_s.get(each.client, -inf))
    return sum(count / (last_s[client] - first_s[client]) for client, count in good.items())


def of_window(
    exchanges: Sequence[Exchange], opens_s: float, closes_s: float, counts: Callable[[Exchange], bool]
) -> float:
    """Return answers per second as defined above."""
    return sum(opens_s <= each.answered_s < closes_s and counts(each) for each in exchanges) / (closes_s - opens_s)
