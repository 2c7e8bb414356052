"""From a loaded task to a worker that answers: streams, warm-up, scheduler, threads. The one place that wires them.

engine -> streams -> measured at a few sizes, or remembered -> scheduler -> worker, which rehearses while it is idle
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from handlers.adaptive.arrivals import Arrivals
from handlers.adaptive.decoder import Decoder
from handlers.adaptive.fail_fast import Guard
from handlers.adaptive.measurements import Measurements, folder_of
from handlers.adaptive.response_timing import ResponseTiming
from handlers.adaptive.worker import AdaptiveWorker
from handlers.config import HandlerConfig
from handlers.engines import Divisible, Engine, available_threads
from handlers.metrics import Recorder
from handlers.pipeline import runner
from handlers.pipeline.micro_batches import Overhead
from handlers.pipeline.runner import Runner
from handlers.pipeline.warm_up import Allowed, Rehearsal, measure, prepare
from handlers.protocol.requests import Payload
from handlers.scheduling.batch_size import TUNING as SIZE_TUNING
from handlers.scheduling.latency_model import LatencyModel
from handlers.scheduling.policy import Policy, check_mode
from handlers.scheduling.scheduler import Scheduler
from handlers.scheduling.streams import Streams

# A size between one item and all that fit, which the latency models start from.
TYPICAL_ITEMS = 8


class Task(runner.Task, Protocol):
    """A loaded task; see handlers.base.BatchHandler."""

    config: Any
    engine: Engine
    model_dir: Path
    fingerprint: str | None
    overhead: Overhead
    decodes_in_threads: Any

    def sample(self) -> Payload | None: ...
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


def start(
    task: Task, window: int, settings: Mapping[str, Any], metrics: Metrics, *, longest_run_s: float
) -> AdaptiveWorker:
    """Warm a task up and start its worker.

    Args:
        task: loaded, on its whole engine.
        window: most requests that are in flight, the registration's batch_size.
        settings: the archive's whole model-config.yaml.
        metrics: where the worker counts.
        longest_run_s: seconds after which a micro-batch that still runs is stuck.

    Raises:
        InvalidConfig: the settings do not let TorchServe work with this mode.
    """
    check_mode(settings)
    config: HandlerConfig = task.config
    policy = Policy.of(config, task.overhead)
    parts = divided(task.engine, config.scheduling.streams)
    on_streams = [on_engine(task, part) for part in parts] or [task]
    scheduler = warm_scheduler(task, on_streams, policy, window)
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


def divided(engine: Engine, streams: int | Literal["auto"]) -> Sequence[Engine]:
    """Give an engine's streams, as many as are wanted or else are best; none where it has none."""
    return engine.divide(engine.best_streams if streams == "auto" else streams) if isinstance(engine, Divisible) else ()


def warm_scheduler(task: Task, on_streams: list[Task], policy: Policy, window: int) -> Scheduler:
    """Run what is most likely, and give a scheduler that knows what micro-batches take."""
    sizes = {1, min(TYPICAL_ITEMS, policy.max_items), min(window, policy.max_items)}
    config = task.config
    known = Measurements(
        task.fingerprint,
        f"{task.engine.description} {config.threads} {len(on_streams)} {sorted(sizes)}",
        folder_of(task.model_dir),
    )
    longest_s = SIZE_TUNING.longest_share * policy.nominal_latency_s

    def model_of(engine: str, on_it: Task) -> LatencyModel:
        """Measure everything the first time; later only one item, for the engine must run once in any case."""
        if remembered := known.get(engine):
            return LatencyModel([*remembered, *measure(on_it, task.sample(), {1})])
        seeds = measure(on_it, task.sample(), sizes, longest_s)
        known.put(engine, seeds)
        return LatencyModel(seeds)

    wide = model_of("whole", task)
    first, *others = on_streams
    narrow = wide if first is task else model_of("stream", first)
    for other in others:
        prepare(other, task.sample(), {1})
    is_lone_wide = not isinstance(task.engine, Divisible) or task.engine.is_faster_whole
    return Scheduler(policy, Streams(wide, narrow, len(on_streams), is_lone_wide=is_lone_wide))


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


def on_engine(task: AnyTask, engine: Engine) -> AnyTask:
    """Give the task on another engine; all else is shared."""
    other = copy(task)
    other.engine = engine
    return other
