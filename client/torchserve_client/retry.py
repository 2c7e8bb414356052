"""When to try again, and how long to wait before. Pure but for the clock, the sleep and the dice it is given.

    attempt -> an answer                             done
            -> 503 or 429                            never ran: again, not before Retry-After
            -> NoConnection, nothing was sent        again
            -> NoConnection, perhaps it was sent     again where the request is repeatable
            -> anything else                         raised

One deadline stands over all tries and pauses. A pause is drawn from 0..base * 2^tries ("full jitter"), so that clients
that failed together do not come back together.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from urllib3.exceptions import InvalidHeader
from urllib3.util import Retry

from torchserve_client.errors import ClientError, DeadlineExceeded, NoConnection

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What is tried again.

    Attributes:
        attempts: most tries of one call, the first included.
        first_pause_s: most seconds before the second try; doubles with each.
        longest_pause_s: where doubling ends.
        is_repeatable: whether a request may run twice. Predictions of a model are functions of their input, so a lost
            connection is tried again unless this is False.
        statuses: that are tried again. 503 and 429 by themselves: they are answered for what has not run. 500 and 507
            mean that a worker died, perhaps of this very request.
    """

    attempts: int = 8
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0
    is_repeatable: bool = True
    statuses: frozenset[int] = frozenset({429, 503})

    def __post_init__(self) -> None:
        """Refuse a policy that could not be followed."""
        if self.attempts < 1 or self.first_pause_s < 0 or self.longest_pause_s < 0:
            raise ValueError("attempts must be at least 1, pauses not negative")

    def is_worth_it(self, error: ClientError) -> bool:
        """Whether another try may help and does no harm."""
        if isinstance(error, NoConnection):
            return self.is_repeatable or not error.was_sent
        return error.status in self.statuses

    def pause_s(self, tries: int, retry_after_s: float, dice: float) -> float:
        """Seconds to wait.

        Args:
            tries: that have failed, 1 or more.
            retry_after_s: what the server asked for; 0 where it did not.
            dice: a random number of 0..1.
        """
        # The exponent is bounded, or a float overflows after a thousand tries.
        most_s = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(tries - 1, 30))
        return retry_after_s + most_s * dice


@dataclass(frozen=True, slots=True)
class Runner:
    """A policy with the clock, the sleep and the dice of its process; a test brings its own."""

    policy: RetryPolicy
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    dice: Callable[[], float] = random.random

    def run(self, attempt: Callable[[float], T], timeout_s: float) -> T:
        """Try until it works, or there is no use, or no time.

        Args:
            attempt: one try; takes the seconds that are left of the deadline, raises ClientError.
            timeout_s: of everything together.

        Raises:
            ClientError: of the last try.
            DeadlineExceeded: the time ran out during a try.
        """
        deadline_s = self.clock() + timeout_s
        tries = 0
        while True:
            left_s = deadline_s - self.clock()
            if left_s <= 0:
                raise DeadlineExceeded(f"no answer within {timeout_s:g} s, after {tries} tries")
            try:
                return attempt(left_s)
            except ClientError as error:
                tries += 1
                if tries >= self.policy.attempts or not self.policy.is_worth_it(error):
                    raise
                pause_s = self.policy.pause_s(tries, retry_after_s(error.retry_after), self.dice())
                if pause_s >= deadline_s - self.clock():
                    # The reason says more than that the time would have run out.
                    raise
            self.sleep(pause_s)


def retry_after_s(value: str) -> float:
    """Seconds that a Retry-After header asks for, given as such or as a date; 0 for what is neither."""
    if not value:
        return 0.0
    try:
        return float(Retry().parse_retry_after(value))
    except InvalidHeader:
        return 0.0
