"""Says what four and sixteen threads give, by simulation, and what does not scale: `python -m load.bench threads`.

    a server on one thread, and on all of this machine -> throughput, and the costs of load.bench.thread_model
        -> simulate: one and two threads, held against what was measured; four and sixteen

Costs are processor time: of the worker by part (load.bench.cost), of the frontend by thread, of the client. Passes of
the engine are measured in this process on one thread and on two: what the second takes off says which share is the
first one's alone. Of decoding that share is what Pillow does not do without the GIL.

    python -m load.bench.threads                    predicts again, from the costs in threads.json
    python -m load.bench.threads FILE [NAME...]     measures, and writes such a file
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from PIL import Image, ImageFile

from deploy.sandbox import started
from deploy.server import Server
from handlers.archive_files import GRAPH
from handlers.engines.openvino import OpenVinoEngine
from handlers.vision.images import Geometry, decode_image, grey_jpeg
from load.bench import cost
from load.bench.cost import Case
from load.bench.hook_clock import HookClock, thread_seconds
from load.bench.identity import Body, Load, under_load
from load.bench.machine import Processor
from load.bench.peers import CPU_ONLY
from load.bench.progress import progress
from load.bench.rounds import Rounds
from load.bench.table import render_cells
from load.bench.thread_model import ADAPTIVE, CLASSIC, Costs, Deployment, Prediction, simulate

PINNED = Path(__file__).with_suffix(".json")


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what is predicted, and how costs are measured."""

    # Threads that are predicted beside those of this machine; and the nodes that the most are shared out to.
    threads: tuple[int, ...] = (1, 2, 4, 16)
    nodes: int = 4
    # Requests at a time of each node, in batches: one waits while one runs.
    batches: int = 2
    # Longest measurement of one figure, s.
    most_s: float = 3.0
    # Passes of an engine that are timed, and seconds after which no other is begun, but for the least.
    passes: int = 50
    passes_s: float = 3.0
    least_passes: int = 3
    # Tokens of the text that an encoder is timed with.
    tokens: int = 16


TUNING = Tuning()
# Model -> items of a pass.
NAMES = {"resnet-152": 8, "mobilenet-v2": 16, "sentence-embedding": 32, "language-id": 32}


@dataclass(frozen=True, slots=True)
class Figure:
    """One model in one mode.

    Attributes:
        costs: measured with all threads of the machine.
        measured: threads -> (requests per second, threads that others had meanwhile).
    """

    costs: Costs
    measured: Mapping[int, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was measured on one machine: `processor` names it, `figures` are by model and mode."""

    processor: str
    figures: Mapping[tuple[str, str], Figure]

    def to_json(self) -> str:
        """Write it as threads.json has it."""
        figures = [
            {
                "model": name,
                "mode": mode,
                "costs": asdict(figure.costs),
                "measured": {str(threads): each for threads, each in figure.measured.items()},
            }
            for (name, mode), figure in self.figures.items()
        ]
        return json.dumps({"processor": self.processor, "figures": figures}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Measurements":
        """Read threads.json."""
        content = json.loads(text)
        figures = {
            (each["model"], each["mode"]): Figure(
                Costs(**each["costs"]),
                {int(threads): (per_s, taken) for threads, (per_s, taken) in each["measured"].items()},
            )
            for each in content["figures"]
        }
        return cls(content["processor"], figures)


Keep = Callable[[Measurements], None]


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure, and say what came out; arguments and errors are those of load.bench.resnet. One round is made."""
    del rounds
    return report(measured(min(duration_s, TUNING.most_s)), is_markdown=is_markdown)


def report(measurements: Measurements, *, is_markdown: bool) -> str:
    """Predict, and make the table."""
    sizes = ", ".join(f"{size} ({name})" for name, size in NAMES.items())
    return "\n".join(
        [
            f"Requests a second by threads, simulated from costs on {measurements.processor}; batches of at most "
            f"{sizes}; {TUNING.batches} batches of clients a node; (n) is simulated / measured",
            "",
            render_cells(*table(measurements), is_markdown=is_markdown),
        ]
    )


def table(measurements: Measurements) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Make the columns and rows: a row for each model and mode."""
    most = max(TUNING.threads)
    columns = (
        "model, mode",
        *(f"{threads} thread{'s' if threads > 1 else ''}" for threads in TUNING.threads),
        f"limit at {most}, busy",
        "Python (GIL) busy",
        f"{TUNING.nodes} nodes of {most // TUNING.nodes}",
    )
    rows = []
    for (name, mode), figure in measurements.figures.items():
        cells = [f"{name}, {mode}"]
        for threads in TUNING.threads:
            per_s = predicted(name, figure, mode, threads).per_s
            held = figure.measured.get(threads)
            cells.append(f"{per_s:.0f}" + ("" if held is None else f" ({check(name, figure, mode, threads):.2f})"))
        at_most = predicted(name, figure, mode, most)
        nodes = TUNING.nodes * predicted(name, figure, mode, most // TUNING.nodes).per_s
        limit = at_most.limit
        cells += [
            f"{limit}, {100 * at_most.busy[limit]:.0f} %",
            f"{100 * at_most.busy['Python (GIL)']:.0f} %",
            f"{nodes:.0f}",
        ]
        rows.append(tuple(cells))
    return columns, rows


def predicted(name: str, figure: Figure, mode: str, threads: int, taken: float = 0.0) -> Prediction:
    """Simulate one worker on so many threads."""
    deployment = Deployment(mode, threads, NAMES[name], TUNING.batches * NAMES[name], taken=taken)
    return simulate(figure.costs, deployment)


def check(name: str, figure: Figure, mode: str, threads: int) -> float:
    """Divide the simulated throughput by the measured one, without the threads that others had meanwhile."""
    per_s, taken = figure.measured[threads]
    return predicted(name, figure, mode, threads, taken).per_s / per_s


def measured(duration_s: float, names: Sequence[str] = tuple(NAMES), keep: Keep = lambda _: None) -> Measurements:
    """Measure models in both modes, on all threads of this machine and on one.

    Args:
        duration_s: seconds of load of a figure.
        names: of models.
        keep: is given what is measured so far, after each figure.

    Raises:
        BenchError, ServerError, ManagementError, ArchiverFailed: something could not be measured.
    """
    cores = sorted(os.sched_getaffinity(0))
    found = Measurements(str(Processor.here()), {})
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        wanted = [_case(name) for name in names]
        cost.build(wanted, work)
        engines = {case.name: _engine(case, work) for case in wanted}
        for threads in dict.fromkeys((len(cores), 1)):
            with on(cores[:threads]), started(work / "model_store", extra=CPU_ONLY) as server:
                for case in wanted:
                    for mode in (CLASSIC, ADAPTIVE):
                        seen = _seen(server, case, mode, duration_s, work)
                        progress(f"{case.name}, {mode}, {threads} threads: {seen.per_s:.0f}/s, others {seen.taken:.2f}")
                        key = (case.name, mode)
                        before = found.figures.get(key) or Figure(costs_of(seen, engines[case.name]), {})
                        own = {threads: (round(seen.per_s, 1), round(seen.taken, 2))}
                        found = replace(
                            found,
                            figures={**found.figures, key: replace(before, measured={**before.measured, **own})},
                        )
                        keep(found)
    return found


@contextmanager
def on(cores: Sequence[int]) -> Iterator[None]:
    """Keep this process, and what it starts, on some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _case(name: str) -> Case:
    """Take a model of the list."""
    image = Body("JPEG", grey_jpeg(cost.TUNING.side), "image/jpeg", {})
    text = Body("text", json.dumps({"text": cost.TEXT}).encode(), "application/json", {})
    return replace(cost.listed(name, image if "net" in name else text), batch_size=NAMES[name])


@dataclass(frozen=True, slots=True)
class Seen:
    """What one model did under load.

    Attributes:
        per_s: requests per second.
        taken: threads of the machine that others had meanwhile.
        parts: microseconds a request of the worker by part.
        client_us: of the load generator, a request.
        java_us: of the frontend, a request; of it `java_thread_us` are those of the worker's one thread there.
        java_thread_us: see there.
    """

    per_s: float
    taken: float
    parts: Mapping[str, float]
    client_us: float
    java_us: float
    java_thread_us: float


def _seen(server: Server, case: Case, mode: str, duration_s: float, work: Path) -> Seen:
    name = cost.registered_name(case, mode)
    load = Load(TUNING.batches * case.batch_size, duration_s)
    with cost.registered(server, case, mode):
        (worker,) = server.management.describe(name)["workers"]
        java = psutil.Process(int(worker["pid"])).ppid()

        look = partial(_Look.now, java, int(worker["pid"]))
        before, after, requests = under_load(server, name, case.body, load, look)
        timed = work / f"{name}.sock"
        timed_before, timed_after, of_timed = under_load(
            server, name + cost.TIMED, case.body, load, lambda: cost.told(timed)
        )
    took_s, worker_s, client_s = after.at_s - before.at_s, after.worker_s - before.worker_s, after.own_s - before.own_s
    java_s = sum(after.java_s.values()) - sum(before.java_s.values())
    # The frontend names its thread of a worker W-PORT-MODEL; no other worker has anything to do.
    own_java_s = sum(
        seconds - before.java_s.get(thread, 0.0)
        for thread, seconds in after.java_s.items()
        if thread[1].startswith("W-")
    )
    return Seen(
        per_s=requests / took_s,
        taken=max(0.0, (after.machine_s - before.machine_s - worker_s - client_s - java_s) / took_s),
        parts=cost.parts(timed_before, timed_after, of_timed, 1e6 * worker_s / requests),
        client_us=1e6 * client_s / requests,
        java_us=1e6 * java_s / requests,
        java_thread_us=1e6 * own_java_s / requests,
    )


@dataclass(frozen=True, slots=True)
class _Look:
    """Processor seconds so far: of the machine, of this process, of the worker, of Java's threads by id and name."""

    at_s: float
    machine_s: float
    own_s: float
    worker_s: float
    java_s: Mapping[tuple[int, str], float]

    @classmethod
    def now(cls, java: int, worker: int) -> "_Look":
        machine = psutil.cpu_times()
        java_s = {(id_, _name(java, id_)): seconds for id_, seconds in thread_seconds(java).items()}
        machine_s = machine.user + machine.nice + machine.system + machine.irq + machine.softirq
        return cls(time.perf_counter(), machine_s, time.process_time(), _used_s(worker), java_s)


def _name(pid: int, thread: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{thread}/comm").read_text(encoding="utf-8").strip()
    except OSError:  # it has just ended
        return ""


def _used_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class Engine:
    """What passes and decoding take on one thread, in seconds; None where the worker's own time says it."""

    pass_s: float | None
    item_s: float | None
    serial: float
    decode_serial: float | None


def costs_of(seen: Seen, engine: Engine) -> Costs:
    """Put costs together; the engine's time is the worker's own where it was not measured by itself."""
    parts = seen.parts
    # A text is decoded under the GIL, by the thread that the frontend speaks to.
    is_decoded_apart = engine.decode_serial is not None
    in_python = [
        part for part in parts if part not in ("engine", cost.UNEXPLAINED, "decode" if is_decoded_apart else "")
    ]
    return Costs(
        client_s=seen.client_us / 1e6,
        java_s=max(0.0, seen.java_us - seen.java_thread_us) / 1e6,
        java_thread_s=seen.java_thread_us / 1e6,
        python_s=max(0.0, sum(parts[part] for part in in_python)) / 1e6,
        decode_s=parts["decode"] / 1e6 if is_decoded_apart else 0.0,
        decode_serial=engine.decode_serial or 0.0,
        pass_s=engine.pass_s or 0.0,
        item_s=parts["engine"] / 1e6 if engine.item_s is None else engine.item_s,
        engine_serial=engine.serial,
    )


def _engine(case: Case, work: Path) -> Engine:
    """Measure the engine and the decoding of a model on one thread and on two."""
    graph = work / "model_store" / cost.registered_name(case, CLASSIC) / GRAPH
    decode_serial = _decode_serial(case.body.body) if case.body.name == "JPEG" else None
    if not graph.is_file():  # fastText, which has one thread
        return Engine(None, None, 1.0, decode_serial)
    precision = case.settings.get("precision", "auto")
    one, two = (OpenVinoEngine(graph, precision=precision, threads=threads) for threads in (1, 2))
    single, some = (_inputs(one, items) for items in (1, case.batch_size))
    single_s, some_s = (median(own_s for own_s, _ in _used_by(partial(one.run, inputs))) for inputs in (single, some))
    # Processor time of both threads. What else the machine does can only keep work from the second: the least counts.
    serial = min(serial_share(own_s + others_s, others_s) for own_s, others_s in _used_by(partial(two.run, some)))
    item_s = max(0.0, (some_s - single_s) / (case.batch_size - 1))
    progress(
        f"{case.name}: {1e3 * some_s:.1f} ms for {case.batch_size} on one thread, {100 * serial:.0f} % of it serial"
    )
    return Engine(max(0.0, single_s - item_s), item_s, serial, decode_serial)


def serial_share(work_s: float, other_s: float) -> float:
    """Return the share of some work that one thread does alone, where another of two took so much of it off."""
    return min(1.0, max(0.0, 1 - 2 * other_s / work_s))


def _used_by(function: Callable[[], object]) -> list[tuple[float, float]]:
    """Call some times; return the processor seconds of each call, of this thread and of all others of this process."""
    function()
    used: list[tuple[float, float]] = []
    ends_s = time.monotonic() + TUNING.passes_s
    while len(used) < TUNING.least_passes or (len(used) < TUNING.passes and time.monotonic() < ends_s):
        others_s, own_s = _of_others(), time.thread_time()
        function()
        used.append((time.thread_time() - own_s, _of_others() - others_s))
    return used


def _of_others() -> float:
    own = threading.get_native_id()
    return sum(seconds for id_, seconds in thread_seconds("self").items() if id_ != own)


def _inputs(engine: OpenVinoEngine, size: int) -> dict[str, Any]:
    if "pixels" in engine.input_names:
        return {"pixels": np.zeros((size, cost.TUNING.side, cost.TUNING.side, 3), np.uint8)}
    return {name: np.ones((size, TUNING.tokens), np.int64) for name in engine.input_names}


def _decode_serial(body: bytes) -> float:
    """Return the share of decoding an image that is under the GIL: Pillow lets go of it as it decodes and resizes."""
    geometry = Geometry(256, cost.TUNING.side, 10**8)
    clock = HookClock()
    with ExitStack() as stack:
        for owner, name in ((ImageFile.ImageFile, "load"), (Image.Image, "resize")):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, clock.timed("free", getattr(owner, name)))
        whole = clock.timed("held", decode_image)
        for _ in range(TUNING.passes):
            whole(body, geometry)
    steps = clock.told()["steps"]
    return float(steps["held"][0] / (steps["held"][0] + steps["free"][0]))


def _write(path: str, found: Measurements) -> None:
    Path(path).write_text(found.to_json(), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Predict from the pinned measurements, or measure and write them to a file."""
    if arguments:
        # An end from outside unwinds like any other, so that what was started is stopped.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        path, *names = arguments
        measured(TUNING.most_s, names or tuple(NAMES), lambda found: _write(path, found))
    else:
        pinned = Measurements.from_json(PINNED.read_text(encoding="utf-8"))
        print(report(pinned, is_markdown=True))


if __name__ == "__main__":
    main(sys.argv[1:])
