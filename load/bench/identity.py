"""Measures what a request costs the worker beside its model: the identity, ours against a bare BaseHandler.

    two archives -> one server -> for each round, each body, 64 clients and 1: processor time of the worker per request,
    ours and bare by turns -> their difference in microseconds

Both return what they are given, 28 x 28 float32: ours as a tensor that it has read, held against its signature, put
into a batch with others, and written again; the other without a look at it. load.bench.identity_steps says where the
time goes.
"""

import io
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from deploy.archive import Recipe, run_archiver
from deploy.models import model
from deploy.server import Server
from load.bench.machine import wait_idle
from load.bench.peers import BenchError
from load.bench.progress import progress
from load.bench.rounds import Round, Series
from load.bench.table import Bound, differences
from load.bench.table import Row as Compared
from load.generate import precise_loop
from load.generate.attack import Attack
from load.generate.closed_loop import ClosedLoop
from load.generate.inputs import Input, Inputs
from load.generate.target import Target
from load.generate.windows import Duration
from load.measure.exchange import OK
from load.measure.recording import Recording

OURS, BARE = "identity", "bare"
Seen = TypeVar("Seen")
# This deployment is held to this bound.
MORE_US = Bound(60, is_minimum=False)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how both are asked."""

    # Of a row: an image of the size of MNIST's.
    shape: tuple[int, ...] = (28, 28)
    # Clients: a full batch, and a batch of one request.
    clients: tuple[int, ...] = (64, 1)
    # Requests of a batch, and ms that it waits: the least that TorchServe takes.
    batch_size: int = 64
    max_batch_delay_ms: int = 1
    # Seconds of load before processor time counts.
    warm_up_s: float = 1.0


TUNING = Tuning()

INFER = '''\
"""Returns its input."""


def infer(x):
    """Return x, of any shape."""
    return {"y": x}
'''


@dataclass(frozen=True, slots=True)
class Body:
    """One way to send a row.

    Attributes:
        name: as the table has it.
        body: the bytes.
        headers: sent beside the content type.
        content_type: of the body.
    """

    name: str
    body: bytes
    content_type: str
    headers: dict[str, str]


def bodies() -> Sequence[Body]:
    """Write a row as a .npy file and as the Open Inference Protocol's binary tensor; answers are of the same kind."""
    row = np.random.default_rng(0).standard_normal((1, *TUNING.shape), dtype=np.float32)
    file = io.BytesIO()
    np.save(file, row)
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "shape": list(row.shape),
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": row.nbytes},
                }
            ],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
    ).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    return (
        Body(".npy", file.getvalue(), "application/x-npy", {"Accept": "application/x-npy"}),
        Body("binary tensor", head + row.tobytes(), "application/octet-stream", length),
    )


def build(store: Path, work: Path) -> None:
    """Build both archives.

    Args:
        store: the model store.
        work: an empty folder.

    Raises:
        ArchiverFailed: one could not be built.
    """
    work.mkdir()
    (work / "infer.py").write_text(INFER, encoding="utf-8")
    entry = {OURS: {"handler": "tensors", "version": "1", "weights": "infer.py"}}
    # The bare handler beside it knows no other mode.
    (work / OURS).mkdir()
    classic = {"handler": {"scheduling": {"mode": "classic"}}}
    (work / OURS / "model-config.yaml").write_text(json.dumps(classic), encoding="utf-8")
    (work / "models.yaml").write_text(json.dumps(entry), encoding="utf-8")  # JSON is YAML
    Recipe(model(OURS, work / "models.yaml"), export_path=store).build()
    temporary = work / "archiver"
    temporary.mkdir()
    arguments = {
        "--model-name": BARE,
        "--version": "1",
        "--handler": str(Path(__file__).with_name("bare_handler.py")),
        "--export-path": str(store),
    }
    run_archiver(BARE, arguments, temporary)


def register(server: Server) -> None:
    """Register both, with the same batches."""
    for name in (OURS, BARE):
        delay_ms = TUNING.max_batch_delay_ms
        server.register(name, f"{name}.mar", batch_size=TUNING.batch_size, max_batch_delay_ms=delay_ms, workers=1)


def measure(server: Server, each: Round, duration_s: float, kept: Series) -> None:
    """Measure every figure once.

    Args:
        server: has both registered.
        each: the round.
        duration_s: seconds of load of one figure.
        kept: figure -> microseconds of the worker's processor time per request, a value a round.
    """
    for body in bodies():
        for clients in TUNING.clients:
            for name in (OURS, BARE):
                wait_idle()
                value = cost_us(server, name, body, clients, duration_s)
                figure = key(name, body.name, clients)
                progress(f"{each}, {figure}: {value:.0f} us a request")
                kept[figure].append(value)


def cost_us(server: Server, name: str, body: Body, clients: int, duration_s: float) -> float:
    """Return the microseconds of processor time that a worker takes for a request."""
    (worker,) = server.management.describe(name)["workers"]
    process = psutil.Process(int(worker["pid"]))
    load = Load(clients, duration_s)
    before_s, after_s, requests = under_load(server, name, body, load, lambda: _used_s(process))
    return 1e6 * (after_s - before_s) / requests


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop of so many clients, for so many seconds."""

    clients: int
    duration_s: float


def under_load(server: Server, name: str, body: Body, load: Load, look: Callable[[], Seen]) -> tuple[Seen, Seen, int]:
    """Put a model under load; return what `look` saw before and after, and the number of requests between.

    Raises:
        BenchError: a request was not answered well.
    """
    url = f"{server.settings.inference_url}/predictions/{name}"
    inputs = Inputs((Input(body.body, body.content_type),))
    attack = Attack(Target(url, body.headers), inputs, ClosedLoop(load.clients), Duration(load.duration_s))
    precise_loop.run(Attack(attack.target, inputs, attack.load, Duration(TUNING.warm_up_s)).generate(Recording()))
    before, recording = look(), Recording()
    precise_loop.run(attack.generate(recording))
    after = look()
    return before, after, answered([exchange.status for exchange in recording.exchanges])


def answered(statuses: Sequence[int]) -> int:
    """Count requests.

    Raises:
        BenchError: one was not answered well.
    """
    if failed := [status for status in statuses if status != OK]:
        raise BenchError(f"{len(failed)} of {len(statuses)} requests failed, with {sorted(set(failed))}")
    return len(statuses)


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def key(name: str, body: str, clients: int) -> str:
    """Name a figure."""
    return f"{name}, {body}, {clients} clients"


def table(kept: Series) -> list[Compared]:
    """Make the rows; the bare handler stands under `stock`."""
    rows = []
    for body in dict.fromkeys(each.name for each in bodies()):
        for clients in TUNING.clients:
            bare, ours = kept[key(BARE, body, clients)], kept[key(OURS, body, clients)]
            what = f"identity, {body}, {clients} clients, us of the worker a request: ours - bare"
            rows.append(Compared(what, bare, ours, [], differences(ours, bare), digits=0, bound=MORE_US))
    return rows


def new_series() -> Series:
    """Make what `measure` fills."""
    kept: dict[str, list[Any]] = defaultdict(list)
    return kept
