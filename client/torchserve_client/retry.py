"""The decision whether to retry. Client makes the tries, all of them within one deadline. Pure.

a try -> a 2xx response                        return it
      -> 503 or 429                            the request never ran: retry, not before Retry-After
      -> NoConnection, nothing was sent        retry
      -> NoConnection, it may have been sent   retry if requests are repeatable
      -> any other error                       raise it
"""

from dataclasses import dataclass

from torchserve_client.errors import ClientError, NoConnection

# Most doublings of a pause: a float overflows after a thousand, and a second doubled 30 times is 34 years.
MAX_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of tries of a call, and the pauses between them.

    Pauses are random from 0 to their limit ("full jitter"), so that clients that failed together do not retry together.

    Attributes:
        attempts: most tries of one call, including the first.
        first_pause_s: most seconds before the second try; the limit doubles with each further try.
        longest_pause_s: most seconds before any try.
        is_repeatable: whether a request may run twice, which allows a retry after a lost connection. Predictions are
            functions of their input, so the default is True.
        statuses: HTTP statuses to retry. The default is 503 and 429, which mean that the request has not run. 500 and
            507 mean that a worker died, perhaps because of this request.
    """

    # Eight tries with these pauses wait 6 s on average and 11 s at most: about as long as a worker takes to restart.
    attempts: int = 8
    first_pause_s: float = 0.1  # about the time of one batch, after which a full queue has room again
    longest_pause_s: float = 5.0  # a person who waits notices a restarted server within this time
    is_repeatable: bool = True
    statuses: frozenset[int] = frozenset({429, 503})

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_pause_s < 0 or self.longest_pause_s < 0:
            raise ValueError("RetryPolicy: attempts must be at least 1, and pauses 0 or more")

    def allows(self, error: ClientError) -> bool:
        """Return whether to retry after an error."""
        if isinstance(error, NoConnection):
            return self.is_repeatable or not error.was_sent
        return error.status in self.statuses

    def longest_before(self, tries: int) -> float:
        """Return the limit in seconds of the pause after a number of failed tries."""
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(tries - 1, MAX_DOUBLINGS))
