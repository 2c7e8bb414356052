"""From the requests of a batch to its micro-batches, in classic mode.

requests -> slots -> decode -> budgets -> prepare -> price -> budgets -> Batch, with its plan
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import repeat

from handlers.config import HandlerConfig
from handlers.pipeline.micro_batches import Overhead, micro_batches
from handlers.pipeline.runner import Runner
from handlers.pipeline.slots import Batch, Slot
from handlers.protocol.requests import Request


def planned(
    runner: Runner,
    requests: Sequence[Request],
    *,
    pool: Executor | None,
    config: HandlerConfig,
    overhead: Overhead,
    ends_s: float,
) -> Batch:
    """Decode the items of a batch, and plan its micro-batches.

    Args:
        runner: the hooks of the task.
        requests: one per row.
        pool: decodes items side by side; None to decode one after the other.
        config: the limits of a micro-batch and of a request.
        overhead: what one more micro-batch costs.
        ends_s: from when on nothing is decoded, in seconds of `time.perf_counter`.
    """
    of_request = [[Slot(payload) for payload in request.payloads] for request in requests]
    slots = [slot for each in of_request for slot in each]
    if pool is not None and len(slots) > 1:
        list(pool.map(runner.decode, slots, repeat(ends_s)))
    else:
        for slot in slots:
            runner.decode(slot, ends_s)
    for each in of_request:
        runner.budget(each)
    runner.prepare(slots)
    cost_of = {id(slot): cost for slot, cost in runner.price(slots)}
    for each in of_request:
        runner.budget(each, cost_of)
    good = [slot for slot in slots if not slot.is_failed]
    costs = [cost_of[id(slot)] for slot in good]
    indices = micro_batches(costs, config.max_items, config.max_tokens, overhead)
    return Batch(list(requests), slots, [[good[index] for index in micro_batch] for micro_batch in indices])
