"""Deep health: each model's own sample through its queue and its engine, once for all probes of some seconds.

a probe -> Checks -> a sample is on its way, or was answered a moment ago? -> its problem : the model is asked
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress

from deploy.protocol.rejections import BUSY
from torchserve_client.payloads import Json

SAMPLE = "sample"  # handlers.protocol.wire's, which an older archive lacks: it answers with its metadata
ANSWER_S = 20.0  # seconds for the answer to a sample; a long micro-batch may be in front of it
KEPT_S = 5.0  # seconds for which a result answers other probes
# Types of an error of which work in front of the sample is the reason: a probe must not restart the busiest server.
# TorchServe has one type for a full queue and for no worker.
_BUSY = {BUSY.type, "QueueFull", "Overloaded", "BatchTimeout"}


def problem_of(status: int, body: bytes) -> str:
    """Return what is wrong with a model that answers its sample so; "" if it is healthy or busy."""
    with suppress(ValueError, TypeError, LookupError):
        if status < 400 or json.loads(body)["type"] in _BUSY:
            return ""
    return f"its own sample returned {status}"


def describe(problems: Mapping[str, str], is_ready: bool | None = None) -> tuple[Json, int]:
    """Return the answer to a probe, and its status; by default a problem is of a whole model."""
    wrong = {name: problem for name, problem in problems.items() if problem}
    is_ready = not wrong if is_ready is None else is_ready
    return {"ready": is_ready, **({"problems": wrong} if wrong else {})}, 200 if is_ready else 503


class Checks:
    """The latest check of each model."""

    def __init__(self) -> None:
        self._latest: dict[Hashable, tuple[asyncio.Task[str], float]] = {}  # with the time of its end, or of its start

    async def check(self, key: Hashable, ask: Callable[[], Awaitable[str]]) -> str:
        """Return what is wrong with a model, which `ask` asks; a probe that leaves does not end the check."""
        loop = asyncio.get_running_loop()
        task, ended_s = self._latest.get(key, (None, 0.0))
        if task is None or (task.done() and loop.time() > ended_s + KEPT_S):
            task = loop.create_task(_ask(ask))
            self._latest[key] = task, loop.time()
            task.add_done_callback(lambda ended: self._latest.__setitem__(key, (ended, loop.time())))
        return await asyncio.shield(task)


async def _ask(ask: Callable[[], Awaitable[str]]) -> str:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await ask()
    except TimeoutError:
        return f"its own sample had no answer in {ANSWER_S:g} s"
    except Exception as error:
        return f"it cannot be asked ({type(error).__name__})"
