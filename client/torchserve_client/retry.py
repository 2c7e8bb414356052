"""What is tried again, how often and after which pauses, within one deadline.

attempt -> an answer                             is returned
        -> 503 or 429                            never ran: is tried again, not before Retry-After
        -> NoConnection, nothing was sent        is tried again
        -> NoConnection, it may have been sent   is tried again if the request is repeatable
        -> anything else                         is raised
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

# Digits of milliseconds that are read: a hundred days.
MOST_DIGITS = 10
# Doublings of a pause, at most: a float overflows after a thousand, and a second doubled so often is 34 years.
MAX_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The rules by which a call is tried again.

    Pauses are drawn from 0 to the limit ("full jitter"), so that clients that failed together do not return together.

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

    def allows(self, error: ClientError) -> bool:
        """Return whether another try may help and does no harm."""
        if isinstance(error, NoConnection):
            return self.is_repeatable or not error.was_sent
        return error.status in self.statuses

    def longest_before(self, tries: int) -> float:
        """Return the most seconds to wait after so many tries that failed."""
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(tries - 1, MAX_DOUBLINGS))


def retried(
    attempt: Callable[[float], T],
    timeout_s: float,
    policy: RetryPolicy,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    dice: Callable[[], float] = random.random,
) -> T:
    """Try until it succeeds, or another try is of no use, or the deadline is near.

    Args:
        attempt: makes one try; takes the seconds that are left until the deadline, and raises ClientError.
        timeout_s: deadline of all tries and pauses together, in seconds.
        policy: what is tried again.
        clock, sleep, dice: the time in seconds, a pause of seconds, a number of 0 to 1.

    Returns:
        What the attempt that succeeded returned.

    Raises:
        ClientError: the error of the last try.
    """
    deadline_s = clock() + timeout_s
    tries = 0
    while True:
        left_s = deadline_s - clock()
        if left_s <= 0:
            raise DeadlineExceeded(f"no answer within {timeout_s:g} s, after {tries} tries")
        try:
            return attempt(left_s)
        except ClientError as error:
            tries += 1
            if tries >= policy.attempts or not policy.allows(error):
                raise
            pause_s = retry_after_s(error) + policy.longest_before(tries) * dice()
            if pause_s >= deadline_s - clock():
                # This error says more than one that the time would have run out.
                raise
        sleep(pause_s)


def retry_after_s(error: ClientError) -> float:
    """Return the seconds after which a server wants to be asked again; 0 where it does not say.

    An adaptive worker sends Retry-After-Ms too, which HTTP does not know: the same, but finer.
    """
    after_ms = error.retry_after_ms
    if after_ms.isascii() and after_ms.isdigit() and len(after_ms) <= MOST_DIGITS:
        return int(after_ms) / 1000
    try:
        return float(Retry().parse_retry_after(error.retry_after)) if error.retry_after else 0.0
    except InvalidHeader:
        return 0.0
