"""What no schedule can do better, whatever it knows: fewest requests out of time, and the highest rate. Pure.

    arrivals, target, pass times -> seconds of the whole engine that each needs at least -> those that cannot be in time

A true bound, by two relaxations. A token costs no less than in the micro-batch where it costs least, among those that
end within the target; all streams together work on one request after the other, without a gap and without waiting for
company. What is left is one machine, jobs with release times, and deadlines in the same order (all allow the same). The
fewest that must be left out are found by Kise, Ibaraki and Mine ("A Solvable Case of the One-Machine Scheduling Problem
with Ready and Due Times", Operations Research 26, 1978): in order of arrival, whenever one would be late, leave out the
one without which the rest is done soonest. For requests of one size that is optimal and leaves out the late one itself.
"""

from collections.abc import Callable, Sequence
from math import inf
from operator import le

from tests.simulated.passes import PassTimes
from tests.simulated.traffic import Arrival

# Ways to leave several streams that are kept at each arrival, chosen so that a test takes seconds.
WAYS = 6


def least_token_s(passes: PassTimes, target_s: float, most_tokens: int) -> float:
    """Give the seconds of the whole engine that a token takes at least, in a micro-batch within the target."""
    sizes = [size for size, _ in passes.wide if size <= most_tokens] or [passes.wide[0][0]]
    wide_s = [passes.wide_s(size) / size for size in sizes if passes.wide_s(size) <= target_s]
    narrow_s = [passes.narrow_s(size) / size / passes.streams for size in sizes if passes.narrow_s(size) <= target_s]
    return min([*wide_s, *narrow_s], default=inf)


def fewest_out_of_time(arrivals: Sequence[Arrival], target_s: float, token_s: float, item_s: float = 0.0) -> int:
    """Count the requests that no schedule can answer within the target.

    Args:
        arrivals: ordered by time, of one item each.
        target_s: from arrival to the end of the pass.
        token_s: see `least_token_s`.
        item_s: what else of the whole machine each item needs, decoding say.
    """
    left_out = 0
    # Of the busy period: when each came, and what it needs. The end of the last is kept beside them.
    busy: list[tuple[float, float]] = []
    ended_s = 0.0
    for arrival in arrivals:
        if arrival.at_s >= ended_s:
            busy = []
        needed_s = arrival.items * (arrival.length * token_s + item_s)
        busy.append((arrival.at_s, needed_s))
        ended_s = max(ended_s, arrival.at_s) + needed_s
        if ended_s > arrival.at_s + target_s:
            busy, ended_s = _without_one(busy)
            left_out += 1
    return left_out


def _without_one(busy: Sequence[tuple[float, float]]) -> tuple[list[tuple[float, float]], float]:
    """Leave out the request without which the others end soonest; give those, and when they end."""
    if len({needed_s for _, needed_s in busy}) == 1:
        rest = list(busy[:-1])
        return rest, _ends_s(rest)
    # The end without one is the end with all, less what it needs or less what idles instead: the latter at most the
    # slack of those after it, the time between their coming and their start.
    ended_s, starts_s = 0.0, []
    for at_s, needed_s in busy:
        starts_s.append(max(ended_s, at_s))
        ended_s = starts_s[-1] + needed_s
    slack_s, best_s, best = inf, -1.0, len(busy) - 1
    for index in reversed(range(len(busy))):
        gained_s = min(busy[index][1], slack_s)
        if gained_s > best_s:
            best_s, best = gained_s, index
        slack_s = min(slack_s, starts_s[index] - busy[index][0])
    rest = [each for index, each in enumerate(busy) if index != best]
    return rest, _ends_s(rest)


def _ends_s(busy: Sequence[tuple[float, float]]) -> float:
    ended_s = 0.0
    for at_s, needed_s in busy:
        ended_s = max(ended_s, at_s) + needed_s
    return ended_s


def highest_rate(held: Callable[[float], float], most_per_s: float, share: float = 0.99, steps: int = 60) -> float:
    """Give the highest rate at which that share of requests is in time, to a part in `steps` of the most.

    Args:
        held: gives the share in time at a rate.
        most_per_s: highest rate that is tried.
        share: that must be in time.
        steps: how finely.
    """
    low, high = 0, steps + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if held(middle * most_per_s / steps) >= share else (low, middle)
    return low * most_per_s / steps


def fewest_refused(
    arrivals_s: Sequence[float], target_s: float, pass_s: Sequence[float], streams: int = 1, most: int = 10**6
) -> int:
    """Count the requests, all of one item and one length, that the best order known afterwards leaves out.

    Dynamic programming over arrivals in their order: of all ways to have dealt with the first ones and to have refused
    so many, those count whose streams are free soonest. The next micro-batch holds the next ones that came: their
    deadlines are in the same order, and whoever is refused between two of one micro-batch might as well take the place
    of the first of them. With one stream that is exact. With several it is a schedule, and so an upper bound of the
    fewest: each micro-batch goes to the stream that is free first, all of them take what they take beside others, and
    of ways that do not compare `WAYS` are kept.

    Args:
        arrivals_s: when they came, ascending.
        target_s: from arrival to the end of the micro-batch.
        pass_s: seconds of a micro-batch of one, of two and so on; as many as it may hold.
        streams: that run side by side.
        most: more refusals than these are not looked for.

    Returns:
        The fewest, or `most` where there are more.
    """
    count = len(arrivals_s)
    idle = (0.0,) * streams
    # ways[i]: how the streams may be left once the first i are dealt with, with so many refused as the round says.
    before: list[list[tuple[float, ...]]] = [[] for _ in range(count + 1)]
    for refused in range(most):
        ways: list[list[tuple[float, ...]]] = [[] for _ in range(count + 1)]
        for first in range(count + 1):
            found = [*ways[first], *(before[first - 1] if first else [])]
            if not first and not refused:
                found = [idle]
            ways[first] = _soonest(found)
            for way in ways[first]:
                for items, seconds in enumerate(pass_s[: count - first], 1):
                    starts_s = max(way[0], arrivals_s[first + items - 1])
                    if starts_s + seconds > arrivals_s[first] + target_s:
                        break
                    ways[first + items].append(tuple(sorted((*way[1:], starts_s + seconds))))
        if ways[count]:
            return refused
        before = ways
    return most


def _soonest(ways: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """List the ways to leave the streams of which none is as soon or sooner on every stream; the soonest of them."""
    kept: list[tuple[float, ...]] = []
    for way in sorted(set(ways)):
        if not any(all(map(le, other, way)) for other in kept):
            kept.append(way)
            if len(kept) == WAYS:
                break
    return kept
