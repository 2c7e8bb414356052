"""The simulated cases: ResNet-152 and embeddings of texts of mixed lengths, with fixed pass times. Pure.

The times are chosen, not measured. They fit the served results on two cores with avx512_bf16 and OpenVINO in bf16: one
client, and the offline throughput. Times of other sizes, of a stream and of an exchange are assumed.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from handlers.batching.engine import LatencyModel, Streams
from handlers.batching.policy import Policy
from handlers.batching.scheduler import Scheduler
from handlers.continuous.timing import Timing
from tests.simulated.adaptive import AdaptiveWorker, Simulated
from tests.simulated.traffic import Arrival, Clients, Machine

# (padded tokens, seconds) of micro-batches, ascending by tokens.
Table = Sequence[tuple[int, float]]


def between(table: Table, tokens: int) -> float:
    right = min(max(1, bisect_left(table, (tokens, 0.0))), len(table) - 1)
    (x0, y0), (x1, y1) = table[right - 1], table[right]
    return max(1e-6, y0 + (y1 - y0) * (tokens - x0) / (x1 - x0))


@dataclass(frozen=True)
class Case:
    """One model on a machine of two cores, whose engine can have two streams."""

    name: str  # of its archive
    wide: Table  # of micro-batches on the whole engine
    narrow: Table  # of micro-batches on one of two streams while the other is busy
    lengths: Sequence[int]  # of the items, in tokens
    decode_s: float  # of one item on one core
    exchange_s: float  # of an exchange with TorchServe, HTTP included
    max_items: int
    max_tokens: int | None
    warm_up: tuple[int, ...]  # sizes that warm-up measures, in tokens
    offline_per_s: float  # items a second with full micro-batches and decoding only

    @property
    def kinds(self) -> list[Arrival]:
        return [Arrival(0.0, length=length, decode_s=self.decode_s) for length in self.lengths]

    def adaptive(
        self, clients: Clients, streams: int, *, max_latency_s: float = inf, window: int = 64, is_bare: bool = False
    ) -> Simulated:
        """Simulate an adaptive worker; `is_bare` means no frontend, and no noise instead of 5 %."""
        wide_s, narrow_s = partial(between, self.wide), partial(between, self.narrow if streams > 1 else self.wide)
        machine = Machine(wide_s, narrow_s, streams, None if is_bare else self.exchange_s, noise=0 if is_bare else 0.05)
        models = [LatencyModel((size, seconds(size)) for size in self.warm_up) for seconds in (wide_s, narrow_s)]
        engine = Streams(models[0], models[1] if streams > 1 else None, streams)
        policy = Policy(max_latency_s=max_latency_s, max_items=self.max_items, max_tokens=self.max_tokens)
        timing = Timing(window, policy.has_target)
        return AdaptiveWorker(clients, Scheduler(policy, engine), machine, timing).run()


def mixed_lengths() -> list[int]:
    """Return lengths of texts, lognormal with a mean of 38 tokens, rounded up to multiples of 8, as padding does."""
    chosen = random.Random(0)
    drawn = (chosen.lognormvariate(0.0, 0.6) * 38 / 1.2 for _ in range(997))
    return [min(256, 8 * int(1 + length // 8)) for length in drawn]


RESNET = Case(
    "resnet-152",
    wide=((1, 0.028), (2, 0.052), (4, 0.099), (8, 0.195), (16, 0.385), (32, 0.77)),
    narrow=((1, 0.050), (2, 0.098), (4, 0.191), (8, 0.38), (16, 0.75), (32, 1.5)),
    lengths=(1,),
    decode_s=0.004,
    exchange_s=0.0025,
    max_items=32,
    max_tokens=None,
    warm_up=(1, 8, 32),
    offline_per_s=39.3,
)
EMBEDDING = Case(
    "sentence-embedding",
    wide=((8, 0.0021), (16, 0.0024), (32, 0.0030), (128, 0.0062), (512, 0.021), (2048, 0.085), (4096, 0.17)),
    narrow=((8, 0.0033), (16, 0.0038), (32, 0.005), (128, 0.0115), (512, 0.040), (2048, 0.165), (4096, 0.34)),
    lengths=mixed_lengths(),
    decode_s=0.0003,
    exchange_s=0.0012,
    max_items=64,
    max_tokens=8192,
    warm_up=(32, 256, 2048),
    offline_per_s=532.8,
)
