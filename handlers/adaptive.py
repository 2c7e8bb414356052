"""The worker that decides for itself what runs when, on TorchServe's continuous-batching mode.

    exchange (TorchServe's thread)      unpack -> accept or refuse -> decode ---+       +--> split -> answer
    decode threads                                                   decode ---+-> ready queue
    engine thread                                                                -> pass -> pass -> ...

Three kinds of thread around one lock. TorchServe's thread calls `exchange` with everything in flight and stays in it
until handlers.exchanges says that an answer is due; requests that the answer leaves out stay in flight and come again.
The engine's thread takes one pass after the other from handlers.schedule, so the engine waits neither for decoding nor
for the frontend. Nobody holds the lock while decoding or running the model.

One worker per model: the frontend polls for all workers of a model under one lock, and an idle worker holds it until a
request comes, while a busy one could not deliver its answers.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil, inf
from typing import Any

from handlers.errors import EXPIRED, InvalidConfig, InvalidInput, ItemError, where
from handlers.estimates import Lengths, size_of
from handlers.exchanges import Exchanges, Situation
from handlers.flights import Flight, Place, Terms
from handlers.metrics import (
    DEADLINE_MISSES,
    ENGINE_BUSY,
    EXCHANGES,
    PREDICTION_RATIO,
    QUEUE_AGE,
    QUEUE_DEPTH,
    REFUSALS,
    Recorder,
)
from handlers.passes import Pass, Ticket
from handlers.replies import Reply
from handlers.rows import Payload, Request
from handlers.schedule import Refusal, Scheduler
from handlers.slots import Forward, Slot
from handlers.steps import Steps, respond

logger = logging.getLogger(__name__)

Unpack = Callable[[Mapping[str, Any], Mapping[str, Any]], Request]

# Payloads of more bytes are decoded by a thread of their own; smaller texts take microseconds together.
LARGE_BYTES = 16 * 1024
# More than there are cores, so that a few slow decodings leave threads for the others.
LEAST_DECODE_THREADS = 4


def check_mode(settings: Mapping[str, Any]) -> None:
    """Whether an archive's model-config.yaml lets TorchServe work with this mode.

    Raises:
        InvalidConfig: it does not.
    """
    problems = []
    if settings.get("continuousBatching") is not True:
        problems.append("continuousBatching: true is needed beside it")
    if settings.get("asyncCommunication"):
        problems.append("asyncCommunication must be off")
    if settings.get("maxWorkers", 1) != 1:
        problems.append("maxWorkers must be 1: TorchServe's frontend starves a busy worker beside an idle one")
    if problems:
        raise InvalidConfig(f"handler: scheduling: mode: adaptive: {'; '.join(problems)}")


def _end_process() -> None:
    os._exit(1)


class AdaptiveWorker:
    """Answers exchanges with whatever the schedule has finished."""

    def __init__(
        self,
        steps: Steps,
        scheduler: Scheduler[Place],
        exchanges: Exchanges,
        recorder: Recorder,
        unpack: Unpack,
        *,
        decode_threads: int,
        decodes_in_threads: bool,
        overload_status: int,
        die: Callable[[], Any] = _end_process,
    ) -> None:
        """Start the engine's thread.

        Args:
            steps: of the task.
            scheduler: seeded with what warm-up took.
            exchanges: of the registration's window.
            recorder: counts.
            unpack: a row and its headers to a request.
            decode_threads: for items of a request.
            decodes_in_threads: whether each item is worth a thread.
            overload_status: of a refused request.
            die: what ends this process at once.
        """
        self._steps = steps
        self._scheduler = scheduler
        self._exchanges = exchanges
        self._recorder = recorder
        self._unpack = unpack
        self._decodes_in_threads = decodes_in_threads
        self._overload_status = overload_status
        self._die = die
        self._lengths = Lengths()
        self._flights: dict[str, Flight] = {}
        self._by_ticket: dict[Ticket, Flight] = {}
        self._forwards: list[Forward] = []
        self._lock = threading.Lock()
        self._answer_may_be_due = threading.Condition(self._lock)
        self._pass_may_be_due = threading.Condition(self._lock)
        self._pool = ThreadPoolExecutor(max(LEAST_DECODE_THREADS, decode_threads), "decode")
        threading.Thread(target=self._guarded, args=(self._run_engine,), name="engine", daemon=True).start()

    # -- TorchServe's thread -------------------------------------------------------------------------------------

    def exchange(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        """One exchange with the frontend.

        Args:
            data: a row for every request in flight.
            context: TorchServe's; the requests that are not answered are taken out of its `request_ids`.

        Returns:
            A body per row, empty for those that are not answered.
        """
        came_s = time.perf_counter()
        ids = dict(context.request_ids)
        newcomers = [index for index, id_ in ids.items() if id_ not in self._flights]
        requests = [self._unpack(data[index], context.get_all_request_header(index)) for index in newcomers]
        with self._lock:
            self._exchanges.came(came_s, len(newcomers))
            # What the frontend no longer knows was answered by itself, after an exchange that failed.
            for gone in self._flights.keys() - ids.values():
                self._forget(self._flights.pop(gone))
            arrived = [
                self._accept(ids[index], request, context.get_all_request_header(index), came_s)
                for index, request in zip(newcomers, requests, strict=True)
            ]
        self._decode([flight for flight in arrived if flight.undecoded], came_s)
        return self._answer(ids, context)

    def _accept(self, id_: str, request: Request, headers: Mapping[str, Any], came_s: float) -> Flight:
        flight = Flight(request, came_s, [Slot(payload) for payload in request.payloads])
        self._flights[id_] = flight
        good = sum(not slot.is_failed for slot in flight.slots)
        if not good:
            return flight
        scheduler = self._scheduler
        try:
            terms = Terms.of(headers, scheduler.policy.priority_levels)
        except InvalidInput as error:
            flight.fail(ItemError.of(error))
            return flight
        tokens = self._lengths.expect(request.payloads)
        answer = scheduler.arrive(came_s, good, tokens, terms.priority, terms.timeout_s)
        if isinstance(answer, Refusal):
            flight.fail(ItemError(self._overload_status, answer.reason, answer.message), answer.retry_after_s)
            self._recorder.add(REFUSALS, 1, answer.reason)
        else:
            flight.ticket = answer
            flight.undecoded = flight.unfinished = len(flight.slots)
            self._by_ticket[answer] = flight
        return flight

    def _forget(self, flight: Flight) -> None:
        if flight.ticket is not None and self._by_ticket.pop(flight.ticket, None) is not None:
            self._scheduler.withdraw(flight.ticket)

    def _answer(self, ids: Mapping[int, str], context: Any) -> list[bytes]:
        with self._lock:
            while True:
                situation, now_s = self._situation(), time.perf_counter()
                due_s = self._exchanges.due_s(situation)
                if due_s <= now_s:
                    break
                self._answer_may_be_due.wait(None if due_s == inf else due_s - now_s)
            self._exchanges.goes(now_s, situation)
            forwards, self._forwards = self._forwards, []
            complete = {index: self._flights.pop(id_) for index, id_ in ids.items() if self._flights[id_].is_complete}
            for flight in complete.values():
                if flight.ticket is not None:
                    del self._by_ticket[flight.ticket]
        for forward in forwards:
            self._steps.split(forward)
        bodies = [b""] * len(ids)
        for index in ids:
            if index in complete:
                bodies[index] = respond(context, index, self._reply(complete[index]))
            else:
                del context.request_ids[index]
        self._recorder.add(EXCHANGES, 1)
        return bodies

    def _reply(self, flight: Flight) -> Reply:
        reply = self._steps.answer(flight.request, flight.slots)
        total_ms = 1000 * (time.perf_counter() - flight.came_s)
        reply = reply.with_headers({"Server-Timing": f"total;dur={total_ms:.2f}, {reply.headers['Server-Timing']}"})
        if flight.ticket is not None:
            with self._lock:
                is_in_time = self._scheduler.answered(flight.ticket, time.perf_counter())
            self._recorder.add(DEADLINE_MISSES, not is_in_time)
        if flight.retry_after_s is None:
            return reply
        return reply.with_headers({"Retry-After": str(max(1, ceil(flight.retry_after_s)))})

    def _situation(self) -> Situation:
        scheduler = self._scheduler
        flights = self._flights.values()
        complete = [flight for flight in flights if flight.is_complete]
        refused_s = [flight.came_s for flight in complete if flight.retry_after_s is not None]
        return Situation(
            in_flight=len(flights),
            complete=len(complete),
            refused=len(refused_s),
            oldest_refusal_s=min(refused_s, default=inf),
            engine_ends_s=None if scheduler.running is None else scheduler.running.ends_s,
            queued_s=scheduler.ready_s,
            decoding=sum(flight.undecoded > 0 for flight in flights),
        )

    # -- decoding ------------------------------------------------------------------------------------------------

    def _decode(self, flights: Sequence[Flight], came_s: float) -> None:
        """Small texts here and now, whatever may take long in the pool."""
        places = [Place(flight, slot) for flight in flights for slot in flight.slots]
        small = []
        for place in places:
            if self._decodes_in_threads or _bytes(place.slot) > LARGE_BYTES:
                self._pool.submit(self._guarded, self._decode_places, [place], came_s)
            else:
                small.append(place)
        if small:
            self._decode_places(small, came_s)

    def _decode_places(self, places: Sequence[Place], came_s: float) -> None:
        slots = [place.slot for place in places]
        sizes = {id(slot): _bytes(slot) for slot in slots}
        for slot in slots:
            self._steps.decode(slot)
        self._steps.prepare(slots)
        costs = {id(slot): cost for slot, cost in self._steps.price(slots)}
        with self._lock:
            self._lengths.learn([sizes[slot] for slot in costs], [cost.length for cost in costs.values()])
            self._exchanges.decoded(time.perf_counter() - came_s)
            for flight, slot in places:
                ticket = flight.ticket
                if ticket is None or ticket not in self._by_ticket:
                    continue
                if id(slot) in costs:
                    flight.costs.append((Place(flight, slot), costs[id(slot)]))
                else:
                    flight.unfinished -= 1
                flight.undecoded -= 1
                if not flight.undecoded:
                    self._scheduler.decoded(ticket, flight.costs)
            self._pass_may_be_due.notify()
            self._answer_may_be_due.notify()

    # -- the engine's thread -------------------------------------------------------------------------------------

    def _run_engine(self) -> None:
        while True:
            chosen = self._next_pass()
            started_s = time.perf_counter()
            slots = [entry.key.slot for entry in chosen.entries]
            forwards = self._steps.run(slots)
            seconds = time.perf_counter() - started_s
            self._recorder.add(ENGINE_BUSY, seconds)
            if chosen.predicted_s > 0:
                self._recorder.observe(PREDICTION_RATIO, seconds / chosen.predicted_s)
            with self._lock:
                # A pass that was halved took longer than such a pass takes.
                is_whole = len(forwards) == 1 and len(forwards[0].slots) == len(slots)
                self._scheduler.finish(seconds, is_telling=is_whole)
                self._exchanges.pass_ended()
                self._forwards += forwards
                for entry in chosen.entries:
                    entry.key.flight.unfinished -= 1
                self._answer_may_be_due.notify()

    def _next_pass(self) -> Pass[Place]:
        with self._lock:
            while True:
                now_s = time.perf_counter()
                self._expire(now_s)
                depth, oldest_s = self._scheduler.ready_items, self._scheduler.oldest_s(now_s)
                started = self._scheduler.start(now_s)
                if isinstance(started, Pass):
                    self._recorder.observe(QUEUE_DEPTH, depth)
                    self._recorder.observe(QUEUE_AGE, oldest_s)
                    self._answer_may_be_due.notify()
                    return started
                ask_s = min(started, self._scheduler.next_expiry_s())
                self._pass_may_be_due.wait(None if ask_s == inf else max(0.0, ask_s - now_s))

    def _expire(self, now_s: float) -> None:
        for ticket in self._scheduler.expire(now_s):
            self._by_ticket[ticket].fail(EXPIRED)
            self._recorder.add(REFUSALS, 1, EXPIRED.type)
            self._answer_may_be_due.notify()

    # -- what must not go wrong ----------------------------------------------------------------------------------

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run on a thread of ours: a bug there ends the worker, not only the thread while callers wait.

        Whoever is in flight is then answered by the frontend, which starts another worker.
        """
        try:
            work(*arguments)
        except BaseException as error:
            logger.critical("The worker's thread %s failed: %s", threading.current_thread().name, where(error))
            logging.shutdown()
            self._die()


def _bytes(slot: Slot) -> int:
    """Size of a slot's payload; none where an error has taken its place."""
    return size_of(slot.outcome) if isinstance(slot.outcome, Payload) else 0
