"""The worker that decides for itself what runs when, on TorchServe's continuous-batching mode.

    frontend's thread     receive -> unpack -> accept or refuse -> decode ---+       +--> split -> answer -> send
    decode threads                                                decode ---+-> ready
    engine's threads                                                            -> pass -> pass -> ...

Three kinds of thread around one lock. TorchServe's own thread hands the connection over with its first batch and never
gets it back (frontend.py): it receives everything in flight, sends an answer when response_timing says that one is
due, and so on; requests that an answer leaves out stay in flight and come again. The engine's threads, one a lane, take
one pass after the other from the scheduler, so the engine waits neither for decoding nor for the frontend. Nobody
holds the lock while decoding or running the model.

One worker per model: the frontend polls for all workers of a model under one lock, and an idle worker holds it until a
request comes, while a busy one could not deliver its answers.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from math import ceil, inf
from typing import Any, NoReturn

from handlers.adaptive.decoder import Decoded, Decoder
from handlers.adaptive.fail_fast import Guard
from handlers.adaptive.frontend import Disconnected, Link, Sent
from handlers.adaptive.in_flight import Flight, Place, Terms
from handlers.adaptive.length_estimate import Lengths
from handlers.adaptive.response_timing import Exchanges, Situation
from handlers.errors import EXPIRED, INTERNAL_ERROR, InvalidInput, ItemError, where
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
from handlers.pipeline.runner import Runner
from handlers.pipeline.slots import FinishedMicroBatch, Slot
from handlers.protocol.requests import Request
from handlers.protocol.responses import Reply
from handlers.scheduling.batch_selection import Ticket
from handlers.scheduling.scheduler import Refusal, Scheduler
from handlers.scheduling.streams import Running

logger = logging.getLogger(__name__)

Unpack = Callable[[Mapping[str, Any], Mapping[str, Any]], Request]


class AdaptiveWorker:
    """Answers exchanges with whatever the schedule has finished."""

    def __init__(
        self,
        runners: Sequence[Runner],
        scheduler: Scheduler[Place],
        exchanges: Exchanges,
        recorder: Recorder,
        unpack: Unpack,
        *,
        decode_threads: int,
        decodes_in_threads: bool,
        overload_status: int,
        wake: Callable[[], Any],
        guard: Guard | None = None,
    ) -> None:
        """Start the engine's threads.

        Args:
            runners: of the task, on its whole engine, then on each of its lanes where there are several.
            scheduler: seeded with what warm-up took.
            exchanges: of the registration's window.
            recorder: counts.
            unpack: a row and its headers to a request.
            decode_threads: for items of a request.
            decodes_in_threads: whether each item is worth a thread.
            overload_status: of a refused request.
            wake: told of every exchange, for the metrics.
            guard: over the threads; one that ends the process where it is None.
        """
        self._runner, *lanes = runners
        self._scheduler = scheduler
        self._exchanges = exchanges
        self._recorder = recorder
        self._unpack = unpack
        self._overload_status = overload_status
        self._wake = wake
        self._guard = guard or Guard()
        self._decoder = Decoder(self._runner, self._guard, threads=decode_threads, is_threaded=decodes_in_threads)
        self._lengths = Lengths()
        self._flights: dict[str, Flight] = {}
        self._by_ticket: dict[Ticket, Flight] = {}
        self._finished: list[FinishedMicroBatch] = []
        self._lock = threading.Lock()
        self._answer_may_be_due = threading.Condition(self._lock)
        # When the frontend's thread looks again; minus infinity while it is about to.
        self._answer_due_s = -inf
        self._pass_may_be_due = threading.Condition(self._lock)
        for lane in lanes or runners:
            threading.Thread(target=self._guard.run, args=(self._run_lane, lane), name="engine", daemon=True).start()

    # -- the frontend's thread -----------------------------------------------------------------------------------

    def serve(self, connection: socket.socket) -> NoReturn:
        """Answer the frontend from here on.

        Args:
            connection: where it waits for the answer to a batch; it sends that again.

        Raises:
            SystemExit: the frontend is gone, and so must the worker be.
        """
        link = Link(connection)
        with self._guard.watch():
            try:
                link.send({})
                while True:
                    self._exchange(link)
            except Disconnected:
                logger.warning("Frontend disconnected.")
        sys.exit(0)

    def _exchange(self, link: Link) -> None:
        requests = link.receive()
        came_s = time.perf_counter()
        newcomers = [(id_, self._read(sent), sent.headers) for id_, sent in requests.items() if sent is not None]
        with self._lock:
            self._exchanges.came(came_s, len(newcomers))
            arrived = [self._accept(id_, request, headers, came_s) for id_, request, headers in newcomers]
        self._decode([flight for flight in arrived if flight.undecoded], came_s)
        link.send(self._answers())
        self._recorder.add(EXCHANGES, 1)
        self._wake()

    def _read(self, sent: Sent) -> Request:
        try:
            return self._unpack(sent.row, sent.headers)
        except Exception as error:
            logger.error("A request failed: %s", where(error))
            return Request((INTERNAL_ERROR,))

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

    def _answers(self) -> dict[str, Reply]:
        """Wait until an answer is due; whatever is complete then, by id."""
        with self._lock:
            self._await_answers()
            finished, self._finished = self._finished, []
            complete = {id_: flight for id_, flight in self._flights.items() if flight.is_complete}
            for id_, flight in complete.items():
                del self._flights[id_]
                if flight.ticket is not None:
                    del self._by_ticket[flight.ticket]
        for micro_batch in finished:
            self._runner.split(micro_batch)
        return {id_: self._reply(flight) for id_, flight in complete.items()}

    def _await_answers(self) -> None:
        """Return when the answer must go; with the lock held, but while waiting."""
        while True:
            situation, now_s = self._situation(), time.perf_counter()
            if self._exchanges.is_lone(situation) and isinstance(running := self._scheduler.start(now_s), Running):
                # Nobody else comes meanwhile: no other thread needs to be woken for this one.
                self._lock.release()
                try:
                    self._run(running, self._runner)
                finally:
                    self._lock.acquire()
                continue
            self._wake_engine()
            self._answer_due_s = self._exchanges.due_s(situation)
            if self._answer_due_s <= now_s:
                break
            self._answer_may_be_due.wait(None if self._answer_due_s == inf else self._answer_due_s - now_s)
        self._answer_due_s = -inf
        self._exchanges.goes(now_s, situation)

    def _reply(self, flight: Flight) -> Reply:
        reply = self._runner.answer(flight.request, flight.slots)
        total_ms = 1000 * (time.perf_counter() - flight.came_s)
        reply = reply.with_headers({"Server-Timing": f"total;dur={total_ms:.2f}, {reply.headers['Server-Timing']}"})
        if flight.ticket is not None:
            with self._lock:
                is_in_time = self._scheduler.answered(flight.ticket, time.perf_counter())
            self._recorder.add(DEADLINE_MISSES, not is_in_time)
        if flight.retry_after_s is None:
            return reply
        return reply.with_headers({"Retry-After": str(max(1, ceil(flight.retry_after_s)))})

    def _wake_engine(self) -> None:
        """Wake the threads of lanes that could take a pass."""
        if self._scheduler.waiting.ready:
            self._pass_may_be_due.notify(self._scheduler.lanes.free)

    def _tell_frontend(self) -> None:
        """Wake its thread where what just happened makes an answer due before it would look by itself."""
        if self._exchanges.due_s(self._situation()) < self._answer_due_s:
            self._answer_may_be_due.notify()

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
            lane_ends_s=scheduler.lanes.next_end_s,
            is_lane_free=scheduler.lanes.free > 0,
            queued_s=scheduler.ready_s,
            decoding=sum(flight.undecoded > 0 for flight in flights),
        )

    # -- decoding ------------------------------------------------------------------------------------------------

    def _decode(self, flights: Sequence[Flight], came_s: float) -> None:
        def apart(decoded: list[Decoded]) -> None:
            with self._lock:
                self._decoded(decoded, came_s)
                self._wake_engine()
                self._tell_frontend()

        places = [Place(flight, slot) for flight in flights for slot in flight.slots]
        if decoded := self._decoder.decode(places, apart):
            with self._lock:
                self._decoded(decoded, came_s)

    def _decoded(self, items: Sequence[Decoded], came_s: float) -> None:
        good = [item for item in items if item.cost is not None]
        self._lengths.learn([item.size for item in good], [item.cost.length for item in good if item.cost is not None])
        self._exchanges.decoded(time.perf_counter() - came_s)
        for place, _, cost in items:
            flight = place.flight
            if flight.ticket is None or flight.ticket not in self._by_ticket:
                continue
            if cost is None:
                flight.unfinished -= 1
            else:
                flight.costs.append((place, cost))
            flight.undecoded -= 1
            if not flight.undecoded:
                self._scheduler.decoded(flight.ticket, flight.costs)

    # -- the engine's threads ------------------------------------------------------------------------------------

    def _run_lane(self, lane: Runner) -> None:
        while True:
            running = self._next_pass()
            self._run(running, self._runner if running.is_wide else lane)

    def _run(self, running: Running[Place], runner: Runner) -> None:
        chosen = running.chosen
        slots = [entry.key.slot for entry in chosen.entries]
        started_s = time.perf_counter()
        finished = runner.run(slots)
        seconds = time.perf_counter() - started_s
        self._recorder.add(ENGINE_BUSY, seconds if running.is_wide else seconds / self._scheduler.lanes.count)
        if chosen.predicted_s > 0:
            self._recorder.observe(PREDICTION_RATIO, seconds / chosen.predicted_s)
        with self._lock:
            # A pass that was halved took longer than such a pass takes.
            is_whole = len(finished) == 1 and len(finished[0].slots) == len(slots)
            self._scheduler.finish(running, seconds, is_telling=is_whole)
            self._exchanges.pass_ended()
            self._finished += finished
            for entry in chosen.entries:
                entry.key.flight.unfinished -= 1
            self._wake_engine()
            self._tell_frontend()

    def _next_pass(self) -> Running[Place]:
        with self._lock:
            while True:
                now_s = time.perf_counter()
                self._expire(now_s)
                waiting = self._scheduler.waiting
                depth, oldest_s = len(waiting.ready), waiting.oldest_s(now_s)
                started = self._scheduler.start(now_s)
                if isinstance(started, Running):
                    self._recorder.observe(QUEUE_DEPTH, depth)
                    self._recorder.observe(QUEUE_AGE, oldest_s)
                    self._tell_frontend()
                    return started
                ask_s = min(started, waiting.next_expiry_s())
                self._pass_may_be_due.wait(None if ask_s == inf else max(0.0, ask_s - now_s))

    def _expire(self, now_s: float) -> None:
        for ticket in self._scheduler.expire(now_s):
            self._by_ticket[ticket].fail(EXPIRED)
            self._recorder.add(REFUSALS, 1, EXPIRED.type)
            self._tell_frontend()
