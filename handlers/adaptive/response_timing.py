"""When an adaptive worker answers TorchServe's frontend. Pure: times and counts in, a time out.

In continuous-batching mode an answer may hold any of the requests in flight, none even. The frontend then sends at once
everything that is still in flight, payloads included, and what has arrived meanwhile: an exchange. Answers leave and
arrivals come in by exchanges only, so they must be timely; each costs time in proportion to what is in flight, so they
must be few. One happens when

    everything in flight is answered           the frontend then waits for the next request, and an idle worker is idle
    some answers are complete                  at once where the engine has nothing else to do, else GAP_COSTS apart
    a refusal has waited for REFUSAL_S         with whatever else is ready; GAP_COSTS apart where they fill the window,
                                               so that nobody waits unseen
    a lane will soon be free                   early enough for new arrivals to be decoded before it is: a fetch
    a lane is free while others run            halfway to the end of their pass, and halfway again: a fetch each
    all are, and something is decoded long     every IDLE_FETCH_S, so that nobody waits for a slow picture: a fetch

A fetch that brings nobody was for nothing. Their share is tracked, and while most are for nothing, one in
FETCH_PROBE is made: a single client that waits for its answer is not asked all the time whether it is there.
"""

from dataclasses import dataclass
from math import inf

# Exchanges keep this many times their own cost between them, so that they take at most half of a thread, unless that is
# more than this share of the work that is enough: an answer that is complete must not wait long.
GAP_COSTS, GAP_SHARE = 1.0, 0.33
REFUSAL_S = 0.05
IDLE_FETCH_S = 0.005
# Of the window: with more in flight, refusals do not wait.
CROWDED_SHARE = 0.5
FETCH_PROBE = 8
# Of a pass, while a lane is free.
MOST_FETCHES = 2
LEAST_USE = 0.3
# Weight of the latest observation in each running mean.
NEWEST = 0.2


@dataclass(frozen=True, slots=True)
class Situation:
    """What the worker knows when it asks whether to answer.

    Attributes:
        in_flight: requests that the frontend waits for.
        complete: those of them that could be answered now.
        refused: the complete ones that the schedule did not take.
        oldest_refusal_s: when the first of these came; infinity where there is none.
        lane_ends_s: when the first of the running passes should end; infinity while the engine is idle.
        is_lane_free: whether another pass could start now.
        queued_s: how long the engine has to do with what is decoded.
        decoding: requests that are being decoded.
    """

    in_flight: int
    complete: int
    refused: int = 0
    oldest_refusal_s: float = inf
    lane_ends_s: float = inf
    is_lane_free: bool = True
    queued_s: float = 0.0
    decoding: int = 0

    @property
    def is_engine_done(self) -> bool:
        """Whether it is idle and will be until somebody arrives or is decoded."""
        return self.lane_ends_s == inf and self.queued_s == 0


@dataclass(slots=True)
class Exchanges:
    """The rhythm of one worker.

    Attributes:
        window: most requests in flight: the registration's batch_size.
        enough_s: of queued work, beyond which nobody needs to be fetched.
        cost_s: of an exchange, from an answer to the next rows.
        decode_s: from rows to decoded items.
        use: share of fetches that brought somebody.
    """

    window: int
    enough_s: float
    cost_s: float = 0.001
    decode_s: float = 0.001
    use: float = 1.0
    _came_s: float = -inf
    _went_s: float | None = None
    _is_fetch: bool = False
    _passes_since_fetch: int = 0
    _fetches_since_pass: int = 0

    def came(self, now_s: float, newcomers: int) -> None:
        """Rows came in, with so many that were not known."""
        if self._went_s is not None:
            self.cost_s += NEWEST * (now_s - self._went_s - self.cost_s)
        if self._is_fetch:
            self.use += NEWEST * ((newcomers > 0) - self.use)
        self._came_s = now_s
        # Where this exchange fails, what lies between it and the next is no cost.
        self._went_s, self._is_fetch = None, False

    def decoded(self, seconds: float) -> None:
        """What came in was decoded, so long after it came."""
        self.decode_s += NEWEST * (seconds - self.decode_s)

    def goes(self, now_s: float, situation: Situation) -> None:
        """An answer leaves; with nothing left in flight its cost cannot be told from waiting for a client."""
        is_anything_left = situation.complete < situation.in_flight
        self._went_s = now_s if is_anything_left else None
        # Refusals alone are no reason to go before they are due.
        self._is_fetch = is_anything_left and situation.complete == situation.refused
        if self._is_fetch:
            self._passes_since_fetch = 0
            self._fetches_since_pass += 1

    def pass_ended(self) -> None:
        """One more pass: those without a fetch are counted."""
        self._passes_since_fetch += 1
        self._fetches_since_pass = 0

    def is_lone(self, situation: Situation) -> bool:
        """Whether a single client waits, and fetches lately brought nobody."""
        return situation.in_flight == 1 and self.use < LEAST_USE and self._passes_since_fetch < FETCH_PROBE

    def due_s(self, situation: Situation) -> float:
        """When to answer: a time that has passed means now; infinity until something happens."""
        if situation.complete == situation.in_flight:
            return -inf
        due_s = situation.oldest_refusal_s + REFUSAL_S
        earliest_s = self._came_s + min(GAP_COSTS * self.cost_s, GAP_SHARE * self.enough_s)
        if situation.complete > situation.refused or (situation.complete and situation.is_engine_done):
            due_s = min(due_s, -inf if situation.is_engine_done else earliest_s)
        if situation.refused and situation.in_flight >= CROWDED_SHARE * self.window:
            due_s = min(due_s, earliest_s)
        if situation.lane_ends_s < inf and self._is_fetch_worthwhile(situation):
            needed_s = situation.lane_ends_s - self.cost_s - self.decode_s
            if situation.is_lane_free:
                needed_s = (self._came_s + situation.lane_ends_s) / 2
            due_s = min(due_s, max(earliest_s, needed_s))
        if situation.is_engine_done and situation.decoding and situation.in_flight < self.window:
            due_s = min(due_s, max(earliest_s, self._came_s + IDLE_FETCH_S))
        return due_s

    def _is_fetch_worthwhile(self, situation: Situation) -> bool:
        if situation.in_flight >= self.window or situation.queued_s >= self.enough_s:
            return False
        # None while those of the last are still being decoded.
        if self._fetches_since_pass >= (MOST_FETCHES if situation.is_lane_free else 1) or situation.decoding:
            return False
        return self.use >= LEAST_USE or self._passes_since_fetch >= FETCH_PROBE
