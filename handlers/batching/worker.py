"""The worker that forms its own batches, on TorchServe's continuous-batching mode: its wiring and its main thread.

    frontend's thread     receive -> unpack -> admit or refuse -> decode ---+       +--> split -> answer -> send
    decode threads                                               decode ---+-> queue
    engine's threads                                                            -> micro-batch -> micro-batch -> ...
                                                                                     +-> an item ends

TorchServe's own thread is the frontend's thread: it hands the connection over with its first batch and never gets it
back. It also runs micro-batches that take less time than waking another thread, and those of a client who is alone.

One worker per model: the frontend polls for all workers of a model under one lock, which an idle worker holds until a
request comes. Beside it, a busy one could not deliver its answers. So a worker claims the model as it loads, and does
not load where another worker has it, whatever the management API is asked for.
"""

import logging
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from handlers.batching.arrivals import Arrivals, Arrived, Decoder
from handlers.batching.batches import Limits
from handlers.batching.engine import MOST_WIDE_ITEMS_PER_STREAM, LatencyModel, RunningBatch, Streams
from handlers.batching.engine_threads import EngineThreads
from handlers.batching.frontend import Disconnected, Link, Sent
from handlers.batching.in_flight import InFlightRequest, Replies
from handlers.batching.policy import Policy, check_mode
from handlers.batching.scheduler import Scheduler
from handlers.batching.shared_state import Due, Guard, SharedState
from handlers.batching.timing import Timing
from handlers.batching.trial import Choice, Trial, on_engine
from handlers.engines import Divisible, available_threads
from handlers.errors import InvalidConfig
from handlers.metrics import EXCHANGES, Recorder
from handlers.pipeline.flow import Pipeline
from handlers.pipeline.task import Task
from handlers.protocol.responses import Reply
from handlers.warm_up import Allowed, Rehearsal

logger = logging.getLogger(__name__)

# Seconds that the process of a worker that is replaced may take to be gone, and between two looks whether it is.
GONE_S, POLL_S = 5.0, 0.1

# Claims of this process, by name, which end with the process.
_claims: dict[str, socket.socket] = {}


class Stuck(Exception):
    """The engine does not come back."""


def _streams(choice: Choice) -> Streams:
    """Return the scheduler's streams, which know what micro-batches took on the whole engine and on a stream."""
    (engine, parts), (whole, stream) = choice
    if not parts:
        return Streams(LatencyModel(whole))
    is_whole_faster = not (isinstance(engine, Divisible) and engine.deals_out)
    return Streams(LatencyModel(whole), LatencyModel(stream), len(parts), is_whole_faster=is_whole_faster)


def _rehearsals(task: Task, on_streams: list[Task], scheduler: Scheduler) -> list[Rehearsal]:
    """Return what each stream can do while nobody waits; the first one sees to the whole engine too."""
    streams = scheduler.streams
    limits = Limits.of(scheduler.policy, streams.narrow.line)
    is_whole = on_streams[0] is task
    allowed = [[Allowed(each, limits.max_items, limits.max_tokens, is_whole)] for each in on_streams]
    if not is_whole:
        most = min(limits.max_items, MOST_WIDE_ITEMS_PER_STREAM * streams.count - 1)
        allowed[0].append(Allowed(task, most, limits.max_tokens, is_wide=True))
    return [Rehearsal(each, task.samples, task.config.scheduling.warm_up_s) for each in allowed]


class AdaptiveWorker:
    """Answers exchanges with whatever the scheduler has finished.

    Attributes:
        shared: the requests in flight and their scheduler, behind one lock.
    """

    def __init__(
        self,
        task: Task,
        window: int,
        settings: Mapping[str, Any],
        recorder: Recorder,
        *,
        trial: Trial,
        longest_run_s: float,
    ) -> None:
        """Warm a task up and start the threads.

        Args:
            task: loaded, on the engine of its trial.
            window: most requests that are in flight, the registration's batch_size.
            settings: the archive's whole model-config.yaml.
            recorder: counts.
            trial: finds out what the task runs on.
            longest_run_s: seconds after which a micro-batch that still runs is stuck, and the worker of no more use:
                TorchServe does not notice while it is asked for new requests.

        Raises:
            InvalidConfig: the settings do not let TorchServe work with this mode.
        """
        check_mode(settings)
        config, policy = task.config, Policy.of(task.config, task.overhead)
        choice = trial.choose()
        task.engine = choice.arrangement.whole
        on_streams = [on_engine(task, part) for part in choice.arrangement.streams] or [task]
        scheduler = Scheduler(policy, _streams(choice))
        self.shared = shared = SharedState(scheduler, Timing(window, policy.has_target), recorder)
        self._recorder, self._longest_run_s = recorder, longest_run_s
        self._guard = guard = Guard()
        self._whole = whole = Pipeline(task, recorder)
        self._arrivals = Arrivals(scheduler, recorder, config)
        threads = available_threads(config.decode_threads)
        self._decoder = Decoder(whole, guard, threads=threads, is_threaded=task.decodes_in_threads)
        self._replies = Replies(whole, recorder, shared.answered)
        self._engine = EngineThreads(shared, whole, recorder, guard)
        pipelines = [whole if each is task else Pipeline(each, recorder) for each in on_streams]
        self._engine.start(pipelines, _rehearsals(task, on_streams, scheduler))

    def serve(self, connection: socket.socket) -> NoReturn:
        """Answer the frontend on a connection where it waits for the answer to a batch, which it then sends again.

        Raises:
            SystemExit: the frontend is gone, and so must the worker be.
        """
        link = Link(connection)
        with self._guard.watch():
            try:
                link.send({})
                while True:
                    self._receive(link)
                    link.send(self._answers())
                    self._recorder.add(EXCHANGES, 1)
            except Disconnected:
                logger.warning("Frontend disconnected.")
        sys.exit(0)

    def _receive(self, link: Link) -> None:
        """Take in what has come; nothing here holds on to a body while its answer is waited for."""
        shared, arrivals = self.shared, self._arrivals
        newcomers: list[InFlightRequest] = []

        def take(id_: str, sent: Sent) -> None:
            request = self._whole.unpack(sent.row, sent.headers)
            with shared.lock:
                arrived_s = shared.timing.arrived_s(time.perf_counter(), len(shared.in_flight))
                newcomers.append(arrivals.arrived(id_, request, sent.headers, arrived_s))

        ids = link.receive(take)
        with shared.lock:
            shared.received(ids, newcomers, time.perf_counter())
        self._decode([request for request in newcomers if request.is_admitted])

    def _decode(self, requests: Sequence[InFlightRequest]) -> None:
        shared = self.shared

        def on_decoded(decoded: Sequence[Arrived]) -> None:
            with shared.lock:
                self._arrivals.decoded(decoded)
                shared.wake_engine()
                shared.wake_frontend()

        if decoded := self._decoder.decode(requests, on_decoded):
            with shared.lock:
                self._arrivals.decoded(decoded)

    def _answers(self) -> dict[str, Reply]:
        """Wait until an answer is due, and work meanwhile where nobody else needs to; replies by id."""
        while isinstance(due := self._next_due(), RunningBatch):
            self._engine.run(due, self._whole)
        for micro_batch in due.finished:
            self._whole.split(micro_batch)
        others = len(self.shared.in_flight)
        return {request.id: self._replies.write(request, others) for request in due.complete}

    def _next_due(self) -> Due | RunningBatch:
        """Wait until an answer must go, or this thread is to run a micro-batch itself."""
        shared, scheduler, timing = self.shared, self.shared.scheduler, self.shared.timing
        with shared.lock:
            while True:
                now_s = time.perf_counter()
                shared.expire(now_s)
                if scheduler.is_stuck(now_s, self._longest_run_s):
                    raise Stuck
                situation = shared.situation()
                due_s = timing.due_s(situation)
                if due_s <= now_s:
                    return shared.take_due(with_refused=timing.refusal_due_s(situation) <= now_s)
                most = timing.most_inline(situation)
                if most and (running := self._engine.begin(now_s, most_on_whole=most)):
                    return running
                shared.wake_engine()
                shared.wait_for_answer(due_s, now_s)


def claim_worker(model: str, version: str | None) -> None:
    """Claim to be the only worker of a model, where TorchServe's frontend has started this process.

    Raises:
        InvalidConfig: another worker serves it.
    """
    frontend = os.getppid()
    try:
        is_frontend = Path(f"/proc/{frontend}/comm").read_text().strip() == "java"
    except OSError:
        # No Linux, and so no names that go with their process.
        return
    if is_frontend:
        claim(f"torchserve {frontend} {model} {version}", GONE_S)


def claim(name: str, gone_s: float) -> None:
    """Claim a name among the processes of this machine, as an abstract socket: it is free when its process has ended.

    Raises:
        InvalidConfig: another process has it, and has not ended within `gone_s` seconds.
    """
    if name in _claims:
        return
    deadline_s = time.monotonic() + gone_s
    while True:
        held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The kernel takes 107 bytes.
            held.bind(b"\0" + name.encode()[:107])
        except OSError:
            held.close()
            if time.monotonic() > deadline_s:
                raise InvalidConfig(
                    "another worker serves this model, and adaptive mode has one: scale it to 1; several nodes "
                    "(make serve NODES=4), or scheduling: mode: classic, use more of a machine"
                ) from None
            time.sleep(POLL_S)
        else:
            _claims[name] = held
            return
