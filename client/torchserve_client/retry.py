"""Says when to try again and how long to wait before. Pure but for the clock, the sleep and the dice it is given.

    attempt -> an answer                             is returned
            -> 503 or 429                            never ran: is tried again, not before Retry-After, or before
                                                     Retry-After-Ms where a worker says it so much finer
            -> NoConnection, nothing was sent        is tried again
            -> NoConnection, perhaps it was sent     is tried again where the request is repeatable
            -> anything else, TLSFailed among it     is raised

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

# Digits of milliseconds: a hundred days, and no number that is too long to read.
MOST_DIGITS = 10

# Doublings of a pause, at most: a float overflows after a thousand, and a second doubled so often is 34 years.
MAX_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Says what is tried again, how often and after which pauses.

    Attributes:
        attempts: most tries of one call, the first included.
        first_pause_s: most seconds before the second try; the limit doubles with each further one.
        longest_pause_s: most seconds before any try.
        is_repeatable: whether a request may run twice. Predictions of a model are functions of their input, so a lost
            connection is tried again unless this is False.
        statuses: HTTP statuses that are tried again. The default holds 503 and 429, which are answered for requests
            that have not run; 500 and 507 mean that a worker died, perhaps of this very request.
    """

    # Eight tries with these pauses wait 6 s on average and 11 s at most: about as long as a worker takes to start anew.
    attempts: int = 8
    # Seconds: about the time of one batch, after which a full queue has room again.
    first_pause_s: float = 0.1
    # Seconds: a server that came back is found again soon enough for a person who waits.
    longest_pause_s: float = 5.0
    is_repeatable: bool = True
    statuses: frozenset[int] = frozenset({429, 503})

    def __post_init__(self) -> None:
        """Refuse a policy that could not be followed."""
        if self.attempts < 1 or self.first_pause_s < 0 or self.longest_pause_s < 0:
            raise ValueError("attempts must be at least 1, pauses not negative")

    def is_worth_it(self, error: ClientError) -> bool:
        """Return whether another try may help and does no harm."""
        if isinstance(error, NoConnection):
            return self.is_repeatable or not error.was_sent
        return error.status in self.statuses

    def pause_s(self, tries: int, retry_after_s: float, dice: float) -> float:
        """Return the seconds to wait before the next try.

        Args:
            tries: number of tries that have failed, 1 or more.
            retry_after_s: seconds that the server asked for; 0 where it did not.
            dice: a random number of 0..1.
        """
        most_s = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(tries - 1, MAX_DOUBLINGS))
        return retry_after_s + most_s * dice


@dataclass(frozen=True, slots=True)
class Runner:
    """Follows a policy by the clock, the sleep and the dice of its process; a test brings its own."""

    policy: RetryPolicy
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    dice: Callable[[], float] = random.random

    def run(self, attempt: Callable[[float], T], timeout_s: float) -> T:
        """Try until it works, or another try is no use, or the deadline is near.

        Args:
            attempt: makes one try; takes the seconds that are left of the deadline, and raises ClientError.
            timeout_s: deadline of all tries and pauses together, in seconds.

        Returns:
            What the attempt that worked returned.

        Raises:
            ClientError: the error of the last try.
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
                pause_s = self.policy.pause_s(
                    tries, retry_after_s(error.retry_after, error.retry_after_ms), self.dice()
                )
                if pause_s >= deadline_s - self.clock():
                    # This error says more than one that the time would have run out.
                    raise
            self.sleep(pause_s)


def retry_after_s(value: str, milliseconds: str = "") -> float:
    """Read when a server wants to be asked again.

    Args:
        value: the header Retry-After: seconds, as a number or as a date.
        milliseconds: the header Retry-After-Ms, a whole number, which has the last word.

    Returns:
        The seconds that it asks for; 0 where both are something else.
    """
    if milliseconds.isascii() and milliseconds.isdigit() and len(milliseconds) <= MOST_DIGITS:
        return int(milliseconds) / 1000
    if not value:
        return 0.0
    try:
        return float(Retry().parse_retry_after(value))
    except InvalidHeader:
        return 0.0
