"""The two cases that are simulated: ResNet-152 and embeddings of texts of mixed lengths, with pinned pass times. Pure.

Pinned, and chosen rather than measured: they fit what was served on two cores with avx512_bf16 (one client and
the offline throughput of docs/results.md), with OpenVINO in bf16. What micro-batches take in between, a stream's part
and an exchange are assumed.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from handlers.adaptive.response_timing import ResponseTiming
from handlers.scheduling.batch_size import TUNING as SIZE
from handlers.scheduling.latency_model import LatencyModel
from handlers.scheduling.policy import Policy
from handlers.scheduling.scheduler import Scheduler
from handlers.scheduling.streams import Streams
from tests.simulated.adaptive import AdaptiveWorker, Simulated
from tests.simulated.traffic import Clients, Machine, mixed_lengths

Table = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class PassTimes:
    """(padded tokens, seconds) of micro-batches, ascending by tokens.

    Attributes:
        wide: of those that have the whole engine.
        narrow: of those on one of `streams` streams while the others are busy.
        streams: of the engine.
    """

    wide: Table
    narrow: Table
    streams: int

    def wide_s(self, tokens: int) -> float:
        """Return the seconds of a wide micro-batch."""
        return between(self.wide, tokens)

    def narrow_s(self, tokens: int) -> float:
        """Return the seconds of a micro-batch on a stream."""
        return between(self.narrow, tokens)

    def seeds(self, sizes: Sequence[int]) -> tuple[Table, Table]:
        """Return what warm-up would have measured of wide and narrow micro-batches of so many tokens."""
        return tuple((size, self.wide_s(size)) for size in sizes), tuple((size, self.narrow_s(size)) for size in sizes)


def between(table: Table, tokens: int) -> float:
    """Read a table between its sizes by straight lines, and beyond them by the nearest line."""
    right = min(max(1, bisect_left(table, (tokens, 0.0))), len(table) - 1)
    (x0, y0), (x1, y1) = table[right - 1], table[right]
    return max(1e-6, y0 + (y1 - y0) * (tokens - x0) / (x1 - x0))


@dataclass(frozen=True)
class Case:
    """One model on one machine.

    Attributes:
        name: of its archive.
        passes: what micro-batches take.
        lengths: of the items that are sent, in tokens.
        decode_s: what a core needs to decode one item.
        exchange_s: what an exchange with TorchServe takes, and its HTTP.
        max_items, max_tokens: what a micro-batch may hold.
        warm_up: sizes, in tokens, that warm-up measures.
    """

    name: str
    passes: PassTimes
    lengths: Sequence[int]
    decode_s: float
    exchange_s: float
    max_items: int
    max_tokens: int | None
    warm_up: tuple[int, ...]

    def machine(self, streams: int) -> Machine:
        """Give what takes time, with so many streams, a frontend and 5 % of noise."""
        narrow_s = self.passes.narrow_s if streams > 1 else self.passes.wide_s
        return Machine(self.passes.wide_s, narrow_s, streams, self.exchange_s, noise=0.05)

    def adaptive(
        self, clients: Clients, streams: int, *, max_latency_s: float = inf, window: int = 64, is_bare: bool = False
    ) -> Simulated:
        """Run an adaptive worker, with that target or without any; a bare one without frontend and noise."""
        policy = Policy(max_latency_s=max_latency_s, max_items=self.max_items, max_tokens=self.max_tokens)
        wide, narrow = self.passes.seeds(self.warm_up)
        engine = Streams(LatencyModel(wide), LatencyModel(narrow) if streams > 1 else None, streams)
        timing = ResponseTiming(window, enough_s=SIZE.longest_share * policy.nominal_latency_s)
        machine = self.machine(streams)
        if is_bare:
            machine = replace(machine, exchange_s=None, noise=0.0)
        return AdaptiveWorker(clients, Scheduler(policy, engine), machine, timing).run()

    @property
    def offline_per_s(self) -> float:
        """Items a second where every micro-batch is full and nothing else takes time but decoding, wide or narrow."""
        mean = sum(self.lengths) / len(self.lengths)
        full = self.max_items if self.max_tokens is None else min(self.max_items, int(self.max_tokens / mean))
        tokens, decode_s = int(full * mean), full * self.decode_s
        wide_per_s = full / (self.passes.wide_s(tokens) + decode_s / 2)
        narrow_per_s = full * self.passes.streams / (self.passes.narrow_s(tokens) + decode_s)
        return max(wide_per_s, narrow_per_s)


RESNET = Case(
    "resnet-152",
    PassTimes(
        ((1, 0.028), (2, 0.052), (4, 0.099), (8, 0.195), (16, 0.385), (32, 0.77)),
        ((1, 0.050), (2, 0.098), (4, 0.191), (8, 0.38), (16, 0.75), (32, 1.5)),
        streams=2,
    ),
    lengths=(1,),
    decode_s=0.004,
    exchange_s=0.0025,
    max_items=32,
    max_tokens=None,
    warm_up=(1, 8, 32),
)
EMBEDDING = Case(
    "sentence-embedding",
    PassTimes(
        ((8, 0.0021), (16, 0.0024), (32, 0.0030), (128, 0.0062), (512, 0.021), (2048, 0.085), (4096, 0.17)),
        ((8, 0.0033), (16, 0.0038), (32, 0.005), (128, 0.0115), (512, 0.040), (2048, 0.165), (4096, 0.34)),
        streams=2,
    ),
    lengths=mixed_lengths(),
    decode_s=0.0003,
    exchange_s=0.0012,
    max_items=64,
    max_tokens=8192,
    warm_up=(32, 256, 2048),
)  # fmt: skip
