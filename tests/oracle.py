"""Orders that an oracle decides: scores that two right engines may swap have no order to compare."""

from collections.abc import Iterable
from itertools import pairwise


def is_apart(scores: Iterable[float], tolerance: float) -> bool:
    """Whether neighbours, best first, differ by more than twice the tolerance, so no error within it swaps them."""
    return all(one - other > 2 * tolerance for one, other in pairwise(scores))


def assert_order(scores: Iterable[float], tolerance: float) -> None:
    """Assert that the oracle's scores, best first, are so far apart that their order may be compared."""
    given = [*scores]
    assert is_apart(given, tolerance), f"near ties, so an order within {tolerance:g} says nothing: {given}"
