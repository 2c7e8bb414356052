"""TorchServe's classic mode in simulated time: one batch after the other, first come first served.

    idle until a request comes -> max_batch_delay, or a full batch -> to the worker -> decoded -> micro-batches -> back

One batch is in flight a worker: while it is decoded, or on its way, the engine stands still (see
docs/architecture.md, a request in classic mode).
"""

import heapq
from collections import deque
from itertools import count

from handlers.pipeline.micro_batches import Cost, micro_batches
from tests.simulated.traffic import Clients, Machine, Outcome


def classic(
    clients: Clients, machine: Machine, batch_size: int, *, max_items: int, max_tokens: int | None = None, seed: int = 0
) -> list[Outcome]:
    """Run until nothing is left to happen, and give what became of each request, in the order in which they came.

    Args:
        clients: send requests.
        machine: its engine runs one micro-batch at a time, wide.
        batch_size: of the registration.
        max_items, max_tokens: what a micro-batch may hold.
        seed: of the noise.
    """
    assert machine.exchange_s is not None
    pass_s, order = machine.passes(seed), count()
    comes = [(arrival.at_s, next(order), Outcome(arrival)) for arrival in clients.first()]
    heapq.heapify(comes)
    outcomes: list[Outcome] = []
    queue: deque[Outcome] = deque()
    now_s = 0.0

    def take_until(when_s: float) -> None:
        while comes and comes[0][0] <= when_s:
            outcome = heapq.heappop(comes)[2]
            outcomes.append(outcome)
            queue.append(outcome)

    while comes or queue:
        take_until(now_s)
        if not queue:
            now_s = comes[0][0]
            take_until(now_s)
        # The delay counts from when the first is taken out; a full batch does not wait for it.
        due_s = now_s + machine.delay_s
        while len(queue) < batch_size and comes and comes[0][0] <= due_s:
            now_s = max(now_s, comes[0][0])
            take_until(now_s)
        if len(queue) < batch_size:
            now_s = due_s
        batch = [queue.popleft() for _ in range(min(batch_size, len(queue)))]
        now_s += machine.exchange_s / 2 + machine.request_s * len(batch)
        decode_s = [each.arrival.decode_s for each in batch]
        now_s += max(*decode_s, sum(decode_s) / machine.cores)
        costs = [Cost(each.arrival.length) for each in batch]
        for indices in micro_batches(costs, max_items, max_tokens):
            now_s += pass_s(len(indices) * max(costs[index].length for index in indices), True)
        now_s += machine.exchange_s / 2
        for outcome in batch:
            now_s += machine.request_s
            outcome.ends.append("done")
            outcome.ended_s = now_s
            for arrival in clients.after(outcome):
                heapq.heappush(comes, (arrival.at_s, next(order), Outcome(arrival)))
    return outcomes
