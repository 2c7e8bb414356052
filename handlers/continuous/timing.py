"""When an adaptive worker answers TorchServe's frontend. Pure: times and counts in, a time out.

In continuous-batching mode an answer may hold any of the requests in flight, or none. The frontend then sends at once
everything that is still in flight, payloads included, and what has arrived meanwhile: an exchange. Answers leave and
arrivals come in by exchanges only, and each takes processor time from the micro-batch that runs. One happens

    when everything in flight is answered      the frontend then waits for the next request
    when an answer is complete                 at once
    SOON_S, HELD_S after the last exchange     to look for arrivals: while the engine is idle, with a latency target
    HELD_S after a refusal                     the refusal stays behind when other answers leave earlier
"""

from dataclasses import dataclass
from math import inf

# Seconds that a refusal is held back, and between two exchanges that look for arrivals. A client that comes again at
# once after a refusal, with connection and body, costs a millisecond of a core.
HELD_S = 0.05
# Seconds between two exchanges while the engine is idle, where an exchange takes no time from it.
SOON_S = 0.02
# Seconds of work that the frontend's thread does itself, and the items of it: waking another thread, and an exchange
# meanwhile, would take as long.
QUICK_S = 0.003
QUICK_ITEMS = 16


@dataclass(frozen=True, slots=True)
class Situation:
    """What the worker knows when it asks whether to answer."""

    in_flight: int  # requests that the frontend waits for
    complete: int  # those of them that could be answered now
    refused: int = 0  # those of the complete ones that were not admitted
    oldest_refusal_s: float = inf  # when the first of these came
    is_running: bool = False  # whether a micro-batch is in the engine
    queued_s: float = 0.0  # that the engine needs for what is decoded

    @property
    def is_all_complete(self) -> bool:
        """Whether everything in flight can be answered."""
        return self.complete == self.in_flight


@dataclass(slots=True)
class Timing:
    """The rhythm of one worker."""

    window: int  # most requests in flight: the registration's batch_size
    has_target: bool  # of latency
    received_s: float = -inf  # when the last exchange brought its requests

    def arrived_s(self, now_s: float, in_flight: int) -> float:
        """Return when the requests that an exchange brings now arrived at the frontend, on average.

        The frontend waits for arrivals only if none was left unanswered.
        """
        return (self.received_s + now_s) / 2 if in_flight else now_s

    def due_s(self, situation: Situation) -> float:
        """Return when to answer: a time that has passed means now; infinity until something happens."""
        if situation.complete > situation.refused or situation.is_all_complete:
            return -inf
        due_s, has_room = self.refusal_due_s(situation), situation.in_flight < self.window
        if has_room and not situation.is_running:
            return min(due_s, self.received_s + SOON_S)
        return min(due_s, self.received_s + HELD_S) if has_room and self.has_target else due_s

    def refusal_due_s(self, situation: Situation) -> float:
        """Return when the refusals in flight may go, all of them; infinity without any, now with everything else."""
        return -inf if situation.is_all_complete else situation.oldest_refusal_s + HELD_S

    def most_inline(self, situation: Situation) -> int:
        """Return how many items the frontend's thread runs itself, in one micro-batch; 0 where it should not.

        It does where that is done soon, or where a single client waits and no look is due meanwhile. Of many it takes
        half: while it runs the others, TorchServe and the clients of these are at work.
        """
        if situation.is_all_complete or situation.is_running:
            return 0
        if situation.queued_s <= QUICK_S:
            return max(QUICK_ITEMS, (situation.in_flight + 1) // 2)
        is_lone = situation.in_flight == 1 and situation.queued_s <= HELD_S and not self.has_target
        return self.window if is_lone else 0
