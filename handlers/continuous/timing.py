"""When an adaptive worker answers TorchServe's frontend. Pure: times and counts in, a time out.

In continuous-batching mode an answer contains any of the requests in flight, or none. The frontend then sends at once
all requests that are still in flight, payloads included, and the new ones: an exchange. Responses and requests travel
in exchanges only, and each exchange uses processor time of the running micro-batch. One happens

    when all requests in flight are complete   the frontend then waits for the next request
    when a response is due                        at once
    SOON_S after the last exchange             to look for new requests while the engine is idle
    HOLD_S after it, or longer if it was slow  to look during a micro-batch for new requests, whose timeouts or levels
                                               may not let them wait
    HOLD_S after a rejection                     the rejection does not leave with earlier responses
"""

from dataclasses import dataclass
from math import inf

# Seconds for which a rejection waits, and between two checks for new requests during a micro-batch. A client
# that retries at once, with connection and body, costs a millisecond of a core.
HOLD_S = 0.05
# The most that looking during a micro-batch may use of the time, without a latency target: an exchange carries all
# bodies in flight again, 1 ms for small ones and tens of them for a window of images.
LOOK_SHARE = 0.02
LOOK_S = 1.0  # the most seconds between two looks, whatever they cost
SOON_S = 0.02  # seconds between two checks while the engine is idle: an exchange then uses none of its time
# Seconds of work that the exchange thread runs itself: waking another thread, and an exchange, would take as long.
QUICK_S = 0.003
# Seconds for which the exchange thread leaves all work to the others after a run of it took over HOLD_S: predictions do
# not follow a few slow runs, and no message is read meanwhile.
DOUBT_S = 60.0
QUICK_ITEMS = 16  # items that the exchange thread always runs together, if they are that quick


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The requests in flight and the engine, as far as the timing of an answer depends on them."""

    in_flight: int
    complete: int  # requests in flight whose responses can be sent now
    rejected: int = 0  # complete requests that were not admitted
    oldest_rejection_s: float = inf  # arrival of the first of these
    is_running: bool = False  # whether a micro-batch is in the engine

    @property
    def is_all_complete(self) -> bool:
        return self.complete == self.in_flight


@dataclass(slots=True)
class Timing:
    window: int  # most requests in flight: the registration's batch_size
    has_target: bool  # of latency
    received_s: float = -inf  # time of the last exchange
    cost_s: float = LOOK_S * LOOK_SHARE  # seconds of an exchange, from the answer to the last byte of the message
    _sent_s: float = -inf  # time of the last answer

    def send(self, now_s: float) -> None:
        """Note the time of an answer."""
        self._sent_s = now_s

    def receive(self, now_s: float, in_flight: int) -> None:
        """Note the time of a message, and what it cost: the frontend waits for a first request if none is in flight."""
        self.received_s = now_s
        if in_flight:
            took_s = now_s - self._sent_s
            # A busy machine may stall once.
            self.cost_s = min(took_s, self.cost_s + (took_s - self.cost_s) / 4)

    def estimate_arrival_s(self, now_s: float, in_flight: int) -> float:
        """Return when an exchange's new requests arrived on average; the frontend only waits if none is in flight."""
        return (self.received_s + now_s) / 2 if in_flight else now_s

    def due_s(self, state: WorkerState) -> float:
        """Return when to answer: a past time means now; infinity means after the next change."""
        if state.complete > state.rejected or state.is_all_complete:
            return -inf
        due_s, has_room = self.rejections_due_s(state), state.in_flight < self.window
        if not has_room:
            return due_s
        if not state.is_running:
            return min(due_s, self.received_s + SOON_S)
        pause_s = HOLD_S if self.has_target else min(LOOK_S, max(HOLD_S, self.cost_s / LOOK_SHARE))
        return min(due_s, self.received_s + pause_s)

    def rejections_due_s(self, state: WorkerState) -> float:
        """Return when all rejections may leave; infinity without any, and now if all requests are complete."""
        return -inf if state.is_all_complete else state.oldest_rejection_s + HOLD_S

    def most_inline(self, in_flight: int, queued_s: float) -> int:
        """Return how many of the items that an idle engine needs so many seconds for the exchange thread runs itself.

        Quick ones, and half of many, as others work too.
        """
        if queued_s <= QUICK_S:
            return max(QUICK_ITEMS, (in_flight + 1) // 2)
        is_single = in_flight == 1 and queued_s <= HOLD_S and not self.has_target
        return self.window if is_single else 0
