"""Predicts the throughput of a worker on any number of threads, by simulation. Pure: costs in, throughput out.

    clients -> frontend (Java) -> queue -> worker: read -> decode -> engine -> write -> clients
    Costs, Deployment -> simulate -> Prediction: requests a second, and the share of the time that each part is busy

Work is processor time. What runs at a moment shares the threads evenly, an engine's pass counting for as many as it
has; a part that only one thread may be in at a time is a lock: Python's own (GIL), the frontend's thread of a worker.
The engine follows Amdahl: a share of a pass is one thread's.

What is not in it: caches and memory, which more threads share; the clock, which falls as more of them are busy; two
threads of one core. So it says what the software lets through, and is an upper end for what a machine does.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Generator
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any

CLASSIC, ADAPTIVE = "classic", "adaptive"
# Parts that may be what limits.
GIL, FRONTEND, ENGINE, DECODING, CORES = "Python (GIL)", "frontend's thread", "engine", "decoding", "cores"


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how the simulation is run."""

    # Requests that are answered before it counts, in clients; and that it counts: enough for many batches.
    warm_up: int = 4
    requests: int = 1200
    # Streams of the engine in adaptive mode: handlers.engines.openvino's best.
    streams: int = 2
    # Decoding threads of an adaptive worker at the least: handlers.adaptive.decoder's.
    least_decoders: int = 4


TUNING = Tuning()


@dataclass(frozen=True, slots=True)
class Costs:
    """What a request costs, in seconds of one thread's processor time.

    Attributes:
        client_s: the client's.
        java_s: the frontend's, on any of its threads.
        java_thread_s: the frontend's, on the one thread that a worker has there.
        python_s: the worker's, under the GIL, without decoding.
        decode_s: decoding; of it the share `decode_serial` is under the GIL.
        decode_serial: see there.
        pass_s: a pass of the engine, and `item_s` more for each item.
        item_s: see there.
        engine_serial: share of a pass that one thread does while the others wait.
    """

    client_s: float
    java_s: float
    java_thread_s: float
    python_s: float
    decode_s: float
    decode_serial: float
    pass_s: float
    item_s: float
    engine_serial: float


@dataclass(frozen=True, slots=True)
class Deployment:
    """What serves.

    Attributes:
        mode: CLASSIC or ADAPTIVE.
        threads: of the machine; each worker's engine has its share of them.
        batch_size: most items of a batch, or of a micro-batch.
        clients: how many ask, each as soon as it is answered.
        workers: of one TorchServe; adaptive mode has one.
        delay_s: max_batch_delay.
        taken: threads of the machine that others had meanwhile, in the mean.
    """

    mode: str
    threads: int
    batch_size: int
    clients: int = 64
    workers: int = 1
    delay_s: float = 0.001
    taken: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """What comes out.

    Attributes:
        per_s: requests per second.
        busy: share of the time that each part is busy, the busiest of several alike.
    """

    per_s: float
    busy: dict[str, float]

    @property
    def limit(self) -> str:
        """The part that is busiest."""
        return max(self.busy, key=lambda part: self.busy[part])


@dataclass(slots=True, eq=False)
class _Work:
    """Some processor time, on at most `width` threads at once, under a lock or none."""

    left_s: float
    width: float = 1.0
    lock: str = ""
    part: str = ""


@dataclass(frozen=True, slots=True)
class _Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class _Take:
    """Wait until a queue has something, and take at most so much."""

    queue: "deque[Any]"
    most: int


_Process = Generator[Any, Any, None]


class _Machine:
    """Runs processes on threads; a process yields what it needs next, and is sent what it took."""

    def __init__(self, threads: float) -> None:
        self.now_s = 0.0
        self.used_s = 0.0
        self.busy_s: dict[str, float] = defaultdict(float)
        self._threads = threads
        self._running: dict[_Work, _Process] = {}
        self._held: set[str] = set()
        self._waiting: dict[str, deque[tuple[_Work, _Process]]] = defaultdict(deque)
        self._takers: list[tuple[_Take, _Process]] = []
        self._timers: list[tuple[float, int, _Process]] = []
        self._numbers = count()

    def start(self, process: _Process) -> None:
        self._advance(process, None)

    def put(self, queue: "deque[Any]", value: Any) -> None:
        queue.append(value)
        for index, (take, process) in enumerate(self._takers):
            if take.queue is queue:
                del self._takers[index]
                self._advance(process, self._taken(take))
                return

    def step(self) -> None:
        """Go on to whatever is over next."""
        scale = min(1.0, self._threads / max(1e-9, sum(work.width for work in self._running)))
        ends_s = min((work.left_s / (work.width * scale) for work in self._running), default=inf)
        if self._timers:
            ends_s = min(ends_s, self._timers[0][0] - self.now_s)
        self.now_s += ends_s
        over = []
        for work in self._running:
            done_s = work.width * scale * ends_s
            work.left_s -= done_s
            self.used_s += done_s
            self.busy_s[work.part] += ends_s
            if work.left_s <= 1e-12:
                over.append(work)
        for work in over:
            process = self._running.pop(work)
            if work.lock:
                self._held.discard(work.lock)
                if self._waiting[work.lock]:
                    self._begin(*self._waiting[work.lock].popleft())
            self._advance(process, None)
        while self._timers and self._timers[0][0] <= self.now_s + 1e-12:
            self._advance(heapq.heappop(self._timers)[2], None)

    def _begin(self, work: _Work, process: _Process) -> None:
        if work.lock:
            self._held.add(work.lock)
        self._running[work] = process

    def _advance(self, process: _Process, sent: Any) -> None:
        while True:
            try:
                wish = process.send(sent)
            except StopIteration:
                return
            sent = None
            if isinstance(wish, _Sleep):
                heapq.heappush(self._timers, (self.now_s + wish.seconds, next(self._numbers), process))
                return
            if isinstance(wish, _Take):
                if not wish.queue:
                    self._takers.append((wish, process))
                    return
                sent = self._taken(wish)
            elif wish.left_s > 0:
                if wish.lock in self._held:
                    self._waiting[wish.lock].append((wish, process))
                else:
                    self._begin(wish, process)
                return

    @staticmethod
    def _taken(take: _Take) -> list[Any]:
        return [take.queue.popleft() for _ in range(min(take.most, len(take.queue)))]


def simulate(costs: Costs, deployment: Deployment) -> Prediction:
    """Run clients against a deployment, in simulated time."""
    machine = _Machine(max(0.1, deployment.threads - deployment.taken))
    arrived: deque[Any] = deque()
    answered = [0]

    def client() -> _Process:
        mine: deque[Any] = deque()
        while True:
            yield _Work(costs.client_s, part="client")
            yield _Work(costs.java_s, part="java")
            machine.put(arrived, mine)
            yield _Take(mine, 1)
            answered[0] += 1

    for index in range(deployment.workers):
        worker = _Adaptive if deployment.mode == ADAPTIVE else _Classic
        worker(machine, costs, deployment, arrived, index).start()
    for _ in range(deployment.clients):
        machine.start(client())

    def until(requests: int) -> None:
        while answered[0] < requests:
            machine.step()

    until(TUNING.warm_up * deployment.clients)
    began_s, used_s, before, first = machine.now_s, machine.used_s, dict(machine.busy_s), answered[0]
    until(first + TUNING.requests)
    took_s = machine.now_s - began_s
    shares = {part: (busy_s - before.get(part, 0.0)) / took_s for part, busy_s in machine.busy_s.items()}
    each = {
        part: max((share for name, share in shares.items() if name.startswith(part)), default=0.0)
        for part in (GIL, FRONTEND, ENGINE, DECODING)
    }
    cores = (machine.used_s - used_s) / took_s / (deployment.threads - deployment.taken)
    return Prediction((answered[0] - first) / took_s, {**each, CORES: cores})


@dataclass(slots=True)
class _Worker:
    machine: _Machine
    costs: Costs
    deployment: Deployment
    arrived: "deque[Any]"
    index: int

    @property
    def threads(self) -> int:
        """Those of its engine, and those that decode."""
        return max(1, self.deployment.threads // self.deployment.workers)

    def python(self, seconds: float) -> _Work:
        return _Work(seconds, lock=f"{GIL} {self.index}", part=f"{GIL} {self.index}")

    def frontend(self, requests: int) -> _Work:
        name = f"{FRONTEND} {self.index}"
        return _Work(requests * self.costs.java_thread_s, lock=name, part=name)

    def decoded(self) -> _Process:
        costs = self.costs
        yield self.python(costs.decode_s * costs.decode_serial)
        yield _Work(costs.decode_s * (1 - costs.decode_serial), part="decoded")

    def passed(self, items: int, threads: float, lock: str) -> _Process:
        costs = self.costs
        work_s = costs.pass_s + items * costs.item_s
        yield _Work(work_s * costs.engine_serial, lock=lock, part=lock)
        yield _Work(work_s * (1 - costs.engine_serial), width=threads, lock=lock, part=lock)


class _Classic(_Worker):
    """Takes a batch, decodes it in threads, runs it, answers it, and takes the next."""

    def start(self) -> None:
        self.machine.start(self._run())

    def _run(self) -> _Process:
        costs, machine, half_s = self.costs, self.machine, self.costs.python_s / 2
        while True:
            batch: list[Any] = []
            batch += yield _Take(self.arrived, self.deployment.batch_size)
            if len(batch) < self.deployment.batch_size:
                yield _Sleep(self.deployment.delay_s)
                while self.arrived and len(batch) < self.deployment.batch_size:
                    batch.append(self.arrived.popleft())
            yield self.frontend(len(batch))
            yield self.python(len(batch) * half_s)
            if costs.decode_s:
                began_s, done, todo, left = machine.now_s, deque[Any](), deque(batch), len(batch)
                for _ in range(min(self.threads, left)):
                    machine.start(self._decode(todo, done))
                while left:
                    left -= len((yield _Take(done, left)))
                machine.busy_s[f"{DECODING} {self.index}"] += machine.now_s - began_s
            yield from self.passed(len(batch), self.threads, f"{ENGINE} {self.index}")
            yield self.python(len(batch) * half_s)
            for client in batch:
                machine.put(client, True)

    def _decode(self, todo: "deque[Any]", done: "deque[Any]") -> _Process:
        while todo:
            item = todo.popleft()
            yield from self.decoded()
            self.machine.put(done, item)


class _Adaptive(_Worker):
    """Takes what comes at any time; decoding threads and streams of the engine work beside."""

    def start(self) -> None:
        ready: deque[Any] = deque()
        undecoded: deque[Any] = deque()
        streams = min(TUNING.streams, self.threads)
        self.machine.start(self._read(undecoded if self.costs.decode_s else ready))
        for _ in range(max(TUNING.least_decoders, self.threads) if self.costs.decode_s else 0):
            self.machine.start(self._decode(undecoded, ready))
        for stream in range(streams):
            self.machine.start(self._stream(ready, stream, self.threads / streams))

    def _read(self, into: "deque[Any]") -> _Process:
        # Events of both kinds: a client's queue that came, or a list of those whose items have run.
        while True:
            events = yield _Take(self.arrived, self.deployment.clients)
            came = [event for event in events if isinstance(event, deque)]
            finished = [client for event in events if isinstance(event, list) for client in event]
            yield self.frontend(len(came))
            yield self.python((len(came) + len(finished)) * self.costs.python_s / 2)
            for client in came:
                self.machine.put(into, client)
            for client in finished:
                self.machine.put(client, True)

    def _decode(self, undecoded: "deque[Any]", ready: "deque[Any]") -> _Process:
        while True:
            (client,) = yield _Take(undecoded, 1)
            yield from self.decoded()
            self.machine.put(ready, client)

    def _stream(self, ready: "deque[Any]", stream: int, threads: float) -> _Process:
        while True:
            batch = yield _Take(ready, self.deployment.batch_size)
            yield from self.passed(len(batch), threads, f"{ENGINE} {self.index}.{stream}")
            self.machine.put(self.arrived, batch)
