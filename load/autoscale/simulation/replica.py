"""One replica: requests queue, go through the engine in batches, and are answered together.

    arrive -> admitted to the queue, or refused -> (max_batch_delay, or a full batch) -> start -> end: answers

It has one worker. A batch of n takes `Curve.batch_ms(n)`, from one batch to the next, which is how tune measures it:
decoding, engine, answers and TorchServe's own part of it are in there.
"""

from collections import deque
from dataclasses import dataclass, field

from load.runs.tune import Curve


@dataclass(frozen=True, slots=True)
class Service:
    """How a replica serves.

    Attributes:
        curve: time of a batch by its size.
        batch_size: most requests of a batch.
        max_batch_delay_s: how long an idle replica waits for a batch to be filled.
        queue_size: most requests that wait, beside the batch that runs.
        engine_share: share of a batch's time that is the engine's.
        latency_target_s: most latency that is wanted.
        is_adaptive: whether a request whose answer would be late is refused at once, as adaptive mode does.
    """

    curve: Curve
    batch_size: int
    max_batch_delay_s: float
    queue_size: int
    engine_share: float
    latency_target_s: float
    is_adaptive: bool = False

    def batch_s(self, size: int) -> float:
        """Give the seconds of a batch."""
        return self.curve.batch_ms(size) / 1e3


@dataclass(slots=True, eq=False)
class Replica:
    """A replica's state.

    Attributes:
        name: a number, ascending by creation.
        created_s: when it was asked for.
        ready_s: when it takes its first request.
        queue: arrivals of those that wait, s.
        running: arrivals of those in the batch that runs.
        ends_s: when that ends; None where none runs.
        engine_s: a counter of the engine's busy seconds.
        is_draining: it gets nothing new.
    """

    name: int
    created_s: float
    ready_s: float
    queue: deque[float] = field(default_factory=deque)
    running: list[float] = field(default_factory=list)
    ends_s: float | None = None
    engine_s: float = 0.0
    is_draining: bool = False

    @property
    def in_flight(self) -> int:
        """Requests that are not answered."""
        return len(self.queue) + len(self.running)

    def admits(self, service: Service, now_s: float) -> bool:
        """Say whether one more request is taken."""
        if service.is_adaptive:
            batches = -(-(len(self.queue) + 1) // service.batch_size)
            left_s = self.ends_s - now_s if self.ends_s is not None else 0.0
            size = min(service.batch_size, len(self.queue) + 1)
            return left_s + batches * service.batch_s(size) <= service.latency_target_s
        # What an idle worker takes for its batch waits in no queue.
        room = service.queue_size + (service.batch_size if self.ends_s is None else 0)
        return len(self.queue) < room

    def start(self, service: Service, now_s: float) -> float:
        """Start a batch of what waits; return when it ends."""
        size = min(service.batch_size, len(self.queue))
        self.running = [self.queue.popleft() for _ in range(size)]
        self.ends_s = now_s + service.batch_s(size)
        return self.ends_s

    def end(self, service: Service) -> list[float]:
        """End the batch; return the arrivals of those that it answers."""
        answered, self.running, self.ends_s = self.running, [], None
        self.engine_s += service.engine_share * service.batch_s(len(answered))
        return answered
