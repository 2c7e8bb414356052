"""From a loaded task to a worker that answers: streams, warm-up, scheduler, threads. The one place that wires them.

engine -> trial: precision, streams, what they take -> scheduler -> worker, which rehearses while it is idle
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from handlers.adaptive.arrivals import Arrivals
from handlers.adaptive.decoder import Decoder
from handlers.adaptive.fail_fast import Guard
from handlers.adaptive.response_timing import ResponseTiming
from handlers.adaptive.trial import Settled, Task, Trial, on_engine
from handlers.adaptive.worker import AdaptiveWorker
from handlers.config import HandlerConfig
from handlers.engines import Divisible, Engine, available_threads
from handlers.metrics import Recorder
from handlers.pipeline.runner import Runner
from handlers.pipeline.warm_up import Allowed, Rehearsal
from handlers.scheduling.batch_size import TUNING as SIZE_TUNING
from handlers.scheduling.latency_model import LatencyModel
from handlers.scheduling.policy import Policy, check_mode
from handlers.scheduling.scheduler import Scheduler
from handlers.scheduling.streams import Streams


@dataclass(frozen=True, slots=True)
class Metrics:
    """Where a worker counts what it does.

    Attributes:
        recorder: keeps the sums.
        wake: is told that something was recorded.
    """

    recorder: Recorder
    wake: Callable[[], Any]


def start(
    task: Task,
    window: int,
    settings: Mapping[str, Any],
    metrics: Metrics,
    *,
    trial: Trial,
    longest_run_s: float,
) -> AdaptiveWorker:
    """Warm a task up and start its worker.

    Args:
        task: loaded, on the engine of its trial.
        window: most requests that are in flight, the registration's batch_size.
        settings: the archive's whole model-config.yaml.
        metrics: where the worker counts.
        trial: says what the task runs on.
        longest_run_s: seconds after which a micro-batch that still runs is stuck.

    Raises:
        InvalidConfig: the settings do not let TorchServe work with this mode.
    """
    check_mode(settings)
    config: HandlerConfig = task.config
    policy = Policy.of(config, task.overhead)
    settled = trial.settle(longest_s=SIZE_TUNING.longest_share * policy.nominal_latency_s)
    task.engine = settled.arrangement.whole
    parts = settled.arrangement.streams
    on_streams = [on_engine(task, part) for part in parts] or [task]
    scheduler = Scheduler(policy, streams_of(task.engine, settled))
    whole = Runner(task, metrics.recorder)
    guard = Guard()
    return AdaptiveWorker(
        whole,
        [Runner(each, metrics.recorder) for each in on_streams] if parts else [whole],
        scheduler,
        rehearsals=rehearsals(task, on_streams, scheduler),
        arrivals=Arrivals(scheduler, metrics.recorder, config),
        decoder=Decoder(
            whole, guard, threads=available_threads(config.decode_threads), is_threaded=task.decodes_in_threads
        ),
        timing=ResponseTiming(window, enough_s=SIZE_TUNING.longest_share * policy.nominal_latency_s),
        recorder=metrics.recorder,
        wake=metrics.wake,
        guard=guard,
        longest_run_s=longest_run_s,
    )


def streams_of(engine: Engine, settled: Settled) -> Streams:
    """Give the scheduler's streams, which know what micro-batches took on the whole engine and on a stream."""
    parts, (whole, stream) = settled.arrangement.streams, settled.measured
    wide = LatencyModel(whole)
    if not parts:
        return Streams(wide)
    is_lone_wide = not (isinstance(engine, Divisible) and engine.deals_out)
    return Streams(wide, LatencyModel(stream), len(parts), is_lone_wide=is_lone_wide)


def rehearsals(task: Task, on_streams: list[Task], scheduler: Scheduler) -> list[Rehearsal]:
    """Give what each stream can do while nobody waits; the first one sees to the whole engine too."""
    narrow = scheduler.streams.narrow
    limits = scheduler.limits(narrow.line, narrow.margin)
    is_whole = on_streams[0] is task
    allowed = [[Allowed(each, limits.max_items, limits.max_tokens, is_whole)] for each in on_streams]
    if not is_whole:
        # Beside streams, the whole engine runs one item at a time.
        allowed[0].append(Allowed(task, 1, limits.max_tokens, is_wide=True))
    return [Rehearsal(each, task.samples, task.config.scheduling.warm_up_s) for each in allowed]
