"""From a loaded task to a worker that answers: streams, warm-up, scheduler, threads. The one place that wires them.

engine -> streams -> measured at a few sizes -> scheduler -> every likely shape met once -> worker
"""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from handlers.adaptive.arrivals import Arrivals
from handlers.adaptive.decoder import Decoder
from handlers.adaptive.fail_fast import Guard
from handlers.adaptive.response_timing import ResponseTiming
from handlers.adaptive.worker import AdaptiveWorker
from handlers.config import HandlerConfig
from handlers.engines import Divisible, Engine, available_threads
from handlers.metrics import Recorder
from handlers.pipeline import runner
from handlers.pipeline.micro_batches import Overhead
from handlers.pipeline.runner import Runner
from handlers.pipeline.warm_up import Allowed, measure, meet
from handlers.protocol.requests import Payload
from handlers.scheduling.latency_model import LatencyModel
from handlers.scheduling.policy import Policy, check_mode
from handlers.scheduling.scheduler import TUNING as SCHEDULER_TUNING
from handlers.scheduling.scheduler import Scheduler
from handlers.scheduling.streams import Streams

# A size between one item and all that fit, which the latency models start from.
TYPICAL_ITEMS = 8


class Task(runner.Task, Protocol):
    """A loaded task; see handlers.base.BatchHandler."""

    config: Any
    engine: Engine
    overhead: Overhead
    decodes_in_threads: Any

    def sample(self) -> Payload: ...
    def samples(self) -> Iterable[Payload]: ...


AnyTask = TypeVar("AnyTask", bound=Task)


@dataclass(frozen=True, slots=True)
class Metrics:
    """Where a worker counts what it does.

    Attributes:
        recorder: keeps the sums.
        wake: is told that something was recorded.
    """

    recorder: Recorder
    wake: Callable[[], Any]


def start(task: Task, window: int, settings: Mapping[str, Any], metrics: Metrics) -> AdaptiveWorker:
    """Warm a task up and start its worker.

    Args:
        task: loaded, on its whole engine.
        window: most requests that are in flight, the registration's batch_size.
        settings: the archive's whole model-config.yaml.
        metrics: where the worker counts.

    Raises:
        InvalidConfig: the settings do not let TorchServe work with this mode.
    """
    check_mode(settings)
    config: HandlerConfig = task.config
    policy = Policy.of(config, task.overhead)
    parts = task.engine.divide(config.scheduling.streams) if isinstance(task.engine, Divisible) else ()
    on_streams = [on_engine(task, part) for part in parts] or [task]
    scheduler = warm_scheduler(task, on_streams, policy, window)
    whole = Runner(task, metrics.recorder)
    guard = Guard()
    return AdaptiveWorker(
        whole,
        [Runner(each, metrics.recorder) for each in on_streams] if parts else [whole],
        scheduler,
        arrivals=Arrivals(scheduler, metrics.recorder, overload_status=config.scheduling.overload_status),
        decoder=Decoder(
            whole, guard, threads=available_threads(config.decode_threads), is_threaded=task.decodes_in_threads
        ),
        timing=ResponseTiming(window, enough_s=SCHEDULER_TUNING.longest_share * policy.max_latency_s),
        recorder=metrics.recorder,
        wake=metrics.wake,
        guard=guard,
    )


def warm_scheduler(task: Task, on_streams: list[Task], policy: Policy, window: int) -> Scheduler:
    """Run what is likely once, and give a scheduler that knows what it took."""
    sizes = {1, min(TYPICAL_ITEMS, policy.max_items), min(window, policy.max_items)}
    wide = LatencyModel(measure(task, task.sample(), sizes))
    first, *_ = on_streams
    narrow = wide if first is task else LatencyModel(measure(first, task.sample(), sizes))
    scheduler = Scheduler(policy, Streams(wide, narrow, len(on_streams)))
    limits = scheduler.limits(narrow.line, narrow.margin)
    warm_up_s = task.config.scheduling.warm_up_s
    meet([Allowed(each, limits.max_items, limits.max_tokens) for each in on_streams], task.samples(), warm_up_s)
    if first is not task:
        meet([Allowed(task, 1, limits.max_tokens)], task.samples(), warm_up_s)
    return scheduler


def on_engine(task: AnyTask, engine: Engine) -> AnyTask:
    """Give the task on another engine; all else is shared."""
    other = copy(task)
    other.engine = engine
    return other
