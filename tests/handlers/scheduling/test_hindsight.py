"""Refusals near capacity, against the fewest that the best order known afterwards would have needed.

For one stream `fewest_refused` is exact, by dynamic programming; for two it is a clairvoyant schedule, so the true
fewest may be less. Refusals and late answers count alike. Beside 1.15 times the fewest, 3 of 1000 requests are allowed:
that is the share of late answers that admission aims at, and at 60 and 70 % the fewest are none. At 80 and 90 % the
scheduler falls short: it loses two to six times the fewest.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops

from handlers.engines.openvino import OpenVinoEngine
from handlers.scheduling.latency_model import LatencyModel
from handlers.scheduling.policy import Policy
from handlers.scheduling.scheduler import Scheduler
from handlers.scheduling.streams import Streams
from tests.simulated.adaptive import AdaptiveWorker
from tests.simulated.cases import RESNET
from tests.simulated.clairvoyant import fewest_refused
from tests.simulated.passes import PassTimes, measured
from tests.simulated.traffic import Machine, kinds, poisson

TIMES, ALLOWED_SHARE = 1.15, 0.003
# What falls short today, so that whoever mends it hears of it.
SHORT = pytest.mark.xfail(reason="refuses more than hindsight needs", strict=True)
SINGLES, REQUESTS, MAX_ITEMS = 12, 2000, 32


def refused_and_fewest(passes: PassTimes, share: float) -> tuple[int, int]:
    target_s = SINGLES * passes.wide_s(1)
    pass_s = list(accumulate((passes.narrow_s(items) for items in range(1, MAX_ITEMS + 1)), max))
    rate_per_s = share * passes.streams * MAX_ITEMS / pass_s[-1]
    traffic = poisson(rate_per_s, REQUESTS / rate_per_s, 1, kinds([1]))
    wide, narrow = passes.seeds((1, 8, MAX_ITEMS))
    engine = Streams(LatencyModel(wide), LatencyModel(narrow) if passes.streams > 1 else None, passes.streams)
    scheduler = Scheduler(Policy(max_latency_s=target_s, max_items=MAX_ITEMS), engine)
    machine = Machine(passes.wide_s, lambda tokens: pass_s[tokens - 1], passes.streams)
    outcomes = AdaptiveWorker(traffic, scheduler, machine, None).run().outcomes
    lost = sum(not outcome.is_in_time for outcome in outcomes)
    arrivals_s = [arrival.at_s for arrival in traffic.arrivals]
    return lost, fewest_refused(arrivals_s, target_s, pass_s, passes.streams, most=lost)


@pytest.mark.parametrize("share", [0.6, 0.7, *(pytest.param(share, marks=SHORT) for share in (0.8, 0.9))])
@pytest.mark.parametrize("streams", [1, 2])
def test_scheduler_near_capacity_refuses_hardly_more_than_hindsight_on_pinned_times(streams: int, share: float) -> None:
    passes = RESNET.passes if streams > 1 else replace(RESNET.passes, narrow=RESNET.passes.wide, streams=1)
    lost, fewest = refused_and_fewest(passes, share)
    assert lost <= TIMES * fewest + ALLOWED_SHARE * REQUESTS


@pytest.mark.parametrize("share", [0.6, 0.7])
def test_scheduler_near_capacity_refuses_hardly_more_than_hindsight_on_this_machines_times(
    share: float, tmp_path: Path
) -> None:
    engine = layers(tmp_path)
    rows = np.ones((MAX_ITEMS, 1024), np.float32)
    passes = measured(engine, engine.divide(2).streams, lambda items: {"rows": rows[:items]}, (1, 2, 4, 8, 16, 32), 0.2)
    lost, fewest = refused_and_fewest(passes, share)
    assert lost <= TIMES * fewest + ALLOWED_SHARE * REQUESTS


def layers(folder: Path) -> OpenVinoEngine:
    """Thirty-two fully connected layers: some milliseconds a pass, whatever the machine."""
    rows = ops.parameter([-1, 1024], np.float32, name="rows")
    rows.output(0).set_names({"rows"})
    node = rows
    for seed in range(32):
        weights = np.random.default_rng(seed).normal(0, 0.03, (1024, 1024)).astype(np.float32)
        node = ops.relu(ops.matmul(node, ops.constant(weights), False, False))
    node.output(0).set_names({"out"})
    openvino.save_model(openvino.Model([node], [rows]), folder / "model.xml")
    return OpenVinoEngine(folder / "model.xml")


@pytest.mark.parametrize(
    ("arrivals_s", "streams", "fewest"),
    [
        # A pass of one takes 1 s, of two 1.5 s; answers are due after 2 s.
        ([0.0, 0.0], 1, 0),
        ([0.0, 0.0, 0.0], 1, 1),
        ([0.0, 0.0, 0.0], 2, 0),
        ([0.0, 0.5, 1.0], 1, 0),
        ([0.0, 0.0, 0.0, 1.0, 1.0], 1, 1),
        ([0.0, 0.0, 0.0, 0.0, 0.0], 2, 1),
    ],
)
def test_fewest_refused_of_a_few_arrivals_is_what_one_finds_by_hand(
    arrivals_s: Sequence[float], streams: int, fewest: int
) -> None:
    assert fewest_refused(arrivals_s, 2.0, [1.0, 1.5], streams) == fewest
