"""What is tried again. Client makes the tries, all of them within one deadline. Pure.

a try -> an answer                             is returned
      -> 503 or 429                            never ran: is tried again, not before Retry-After
      -> NoConnection, nothing was sent        is tried again
      -> NoConnection, it may have been sent   is tried again if requests are repeatable
      -> anything else                         is raised
"""

from dataclasses import dataclass

from torchserve_client.errors import ClientError, NoConnection

# Doublings of a pause, at most: a float overflows after a thousand, and a second doubled so often is 34 years.
MAX_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a call is tried, and after which pauses.

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
    # About the time of one batch, after which a full queue has room again.
    first_pause_s: float = 0.1
    # A server that came back is found again soon enough for a person who waits.
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
