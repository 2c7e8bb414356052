"""Measures what clients who come again at once after each refusal take from those who are served.

    a model whose micro-batches of four take some 50 ms of every core, adaptive, with a target that fits 16 clients
    for each round: goodput of 16 clients, goodput of 48, who ignore Retry-After

Bodies have the size of a photograph, for what a refusal costs is mostly its way. A round takes some 12 s at 4 s each.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from deploy.archive import Recipe
from deploy.models import model
from deploy.sandbox import started
from load.bench.machine import wait_idle
from load.bench.peers import CPU_ONLY
from load.bench.progress import aside, progress
from load.bench.rounds import Rounds
from load.bench.table import Bound, ratios, render_cells, spread
from load.generate.attack import Attack
from load.generate.closed_loop import ClosedLoop
from load.generate.inputs import Inputs
from load.generate.target import Target
from load.generate.windows import Duration
from load.measure.summary import Summary

REFUSED = 503


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says what is measured.

    Attributes:
        patient: clients that fit the target: sixteen in micro-batches of four take 200 ms, and their way some more.
        impatient: clients that do not.
        target_ms: max_latency_ms.
        window: batch_size of the registration.
        body_bytes: of a request.
        warm_up_s: seconds under load before the window opens.
    """

    patient: int = 16
    impatient: int = 48
    target_ms: int = 280
    window: int = 64
    body_bytes: int = 100_000
    warm_up_s: float = 1.0


TUNING = Tuning()
OF_CAPACITY = Bound(0.9, is_minimum=True)

NAME = "slow"
TASK = '''
"""A model whose micro-batches take some 50 ms of every core, whatever is in them: hashing lets go of the GIL."""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from handlers.base import BatchHandler
from handlers.config import HandlerConfig
from handlers.engines import available_threads
from handlers.engines.function import FunctionEngine
from handlers.protocol.requests import Payload

PASS_S, TRIED = 0.05, 20_000


class Slow(BatchHandler[HandlerConfig, bytes]):
    config_class = HandlerConfig
    inputs = frozenset({"text"})

    def load(self):
        def work(rounds):
            started_s = time.process_time()
            hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
            return time.process_time() - started_s

        rounds = round(TRIED * PASS_S / min(work(TRIED) for _ in range(5)))
        cores = available_threads(0)
        pool = ThreadPoolExecutor(cores)

        def run(sizes):
            list(pool.map(work, [rounds] * cores))
            return {"sizes": sizes}

        return FunctionEngine(run, ["sizes"])

    def sample(self):
        return Payload(b"text")

    def decode(self, payload):
        return payload.value

    def collate(self, items):
        return {"sizes": np.array([len(item) for item in items])}

    def split(self, outputs, items):
        return outputs["sizes"].tolist()
'''
SETTINGS = f"""
responseTimeout: 60
startupTimeout: 120
handler:
  max_items: 4
  scheduling:
    mode: adaptive
    max_latency_ms: {TUNING.target_ms}
    warm_up_s: 0
"""
COLUMNS = ("measured", "16 clients", "48 clients", "48 / 16", "wanted", "")


def run(*, rounds: Rounds, duration_s: float, is_markdown: bool) -> str:
    """Measure, and say what came out; arguments and errors are those of load.bench.resnet."""
    patient: list[Summary] = []
    impatient: list[Summary] = []
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as work:
        store = Path(work) / "model_store"
        with aside():
            build(Path(work), store)
        with started(store, extra=CPU_ONLY) as server:
            server.register(NAME, f"{NAME}.mar", batch_size=TUNING.window, max_batch_delay_ms=1, workers=1)
            target = Target(f"{server.settings.inference_url}/predictions/{NAME}")
            inputs = Inputs.of([bytes(TUNING.body_bytes)], "text/plain")
            for each in rounds:
                for clients, kept in ((TUNING.patient, patient), (TUNING.impatient, impatient)):
                    wait_idle()
                    load, duration = ClosedLoop(clients), Duration(duration_s)
                    kept.append(Attack(target, inputs, load, duration, TUNING.warm_up_s, TUNING.target_ms).run())
                    progress(f"{each}, {clients} clients: {kept[-1].goodput_per_s:.1f}/s within the target")
    return "\n".join(
        [
            f"Impatient clients: micro-batches of four take 50 ms of every core; max_latency_ms {TUNING.target_ms}; "
            f"bodies of {TUNING.body_bytes // 1000} kB; goodput are answers within the target",
            "",
            render_cells(COLUMNS, cells(patient, impatient, duration_s), is_markdown=is_markdown),
        ]
    )


def build(folder: Path, store: Path) -> None:
    """Build the model's archive, in a folder that has nothing of that name yet."""
    (folder / NAME).mkdir()
    (folder / f"{NAME}.py").write_text(TASK, encoding="utf-8")
    (folder / NAME / "model-config.yaml").write_text(SETTINGS, encoding="utf-8")
    (folder / "models.yaml").write_text(f'{NAME}:\n  handler: {NAME}.py\n  version: "1"\n', encoding="utf-8")
    Recipe(model(NAME, folder / "models.yaml"), export_path=store).build()


def cells(patient: Sequence[Summary], impatient: Sequence[Summary], duration_s: float) -> list[tuple[str, ...]]:
    """Write the rows, a cell for each of COLUMNS; the summaries are in the order of the rounds."""
    goodput = [[each.goodput_per_s for each in some] for some in (patient, impatient)]
    refused = [[each.statuses.get(REFUSED, 0) / duration_s for each in some] for some in (patient, impatient)]
    compared = ratios(goodput[1], goodput[0])
    verdict = "ok" if OF_CAPACITY.is_met(median(compared)) else "short"
    return [
        ("goodput, /s", spread(goodput[0], 1), spread(goodput[1], 1), spread(compared, 2), str(OF_CAPACITY), verdict),
        ("refused, /s", spread(refused[0], 1), spread(refused[1], 1), "", "", ""),
    ]
