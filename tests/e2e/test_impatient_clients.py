"""Clients that come again at once after each refusal, on the real TorchServe: they take next to nothing from the served."""

from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from deploy.models import model
from deploy.server import Server
from load.generate.attack import Attack
from load.generate.closed_loop import ClosedLoop
from load.generate.inputs import Inputs
from load.generate.target import Target
from load.generate.windows import Duration
from load.measure.exchange import OK
from tests.e2e.conftest import url

pytestmark = [pytest.mark.e2e, pytest.mark.clock]

NAME, TARGET_MS, PATIENT, IMPATIENT = "slow", 600, 16, 48
TASK = '''
"""A model whose micro-batches of four take some 50 ms of every core, whatever is in them: hashing lets go of the GIL."""

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
continuousBatching: true
minWorkers: 1
maxWorkers: 1
responseTimeout: 60
startupTimeout: 120
handler:
  max_items: 4
  scheduling:
    mode: adaptive
    max_latency_ms: {TARGET_MS}
    warm_up_s: 0
"""
# A body of the size of a photograph: what a refusal costs is mostly its way.
BODY = bytes(100) * 1000


@pytest.fixture
def slow(tmp_path: Path, archive: Callable[..., str], serve: Callable[..., str]) -> str:
    (tmp_path / NAME).mkdir()
    (tmp_path / "slow.py").write_text(TASK)
    (tmp_path / NAME / "model-config.yaml").write_text(SETTINGS)
    (tmp_path / "models.yaml").write_text(f'{NAME}:\n  handler: slow.py\n  version: "1"\n')
    entry = model(NAME, tmp_path / "models.yaml")
    return serve(archive=archive(entry, engine="auto"), name=NAME, batch_size=64, max_batch_delay_ms=1)


def goodput_per_s(server: Server, clients: int) -> tuple[float, int]:
    """Answers a second within the target, and how many requests were refused."""
    target = Target(url(server, NAME), timeout_s=30)
    inputs = Inputs.of([BODY], "text/plain")
    summary = Attack(target, inputs, ClosedLoop(clients), Duration(4), 1.0, TARGET_MS).run()
    assert set(summary.statuses) <= {OK, 503}
    return summary.goodput_per_s, summary.statuses.get(503, 0)


def test_impatient_clients_leave_nine_tenths_of_the_capacity_to_those_who_are_served(server: Server, slow: str) -> None:
    """Capacity is what as many clients as fit the target get, in the same minute."""
    ratios = []
    for _ in range(3):
        capacity_per_s, _ = goodput_per_s(server, PATIENT)
        goodput, refused = goodput_per_s(server, IMPATIENT)
        assert refused > IMPATIENT - PATIENT
        ratios.append(goodput / capacity_per_s)
    assert median(ratios) >= 0.9, ratios
