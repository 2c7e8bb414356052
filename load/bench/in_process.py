"""Runs the loop without a server: decode and the same engine, in a process that does nothing else.

python -m load.bench.in_process FOLDER     one JSON object a line
    -> {"engine": "openvino cpu bf16"}                              loaded
    <- {"batch_size": 16, "duration_s": 8}                          on stdin, any number of times; "precision": "int8"
                                                                    for another one than the archive's settings say
    -> {"throughput_per_s": 80.1, "p50_s": 0.199}                   items per second; latency of a micro-batch
"""

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import numpy as np
import yaml
from numpy.typing import NDArray

from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.engines import available_threads
from handlers.engines.openvino import OpenVinoEngine
from handlers.vision.config import ImageClassificationConfig
from handlers.vision.images import Geometry, decode_image
from load.bench.orders import answer_orders
from load.bench.photographs import photographs

# Micro-batches before the first that counts, chosen: the first one allocates.
WARM_UP_BATCHES = 2


class Loop:
    """Decodes and classifies as the handler does, and nothing else."""

    def __init__(self, folder: Path, bodies: Sequence[bytes]) -> None:
        """Load the model.

        Args:
            folder: an archive of image_classification, unpacked.
            bodies: images; every micro-batch takes the next ones.
        """
        settings = yaml.safe_load((folder / "model-config.yaml").read_text(encoding="utf-8"))
        config = parse(ImageClassificationConfig, settings.get("handler"))
        geometry = Geometry(config.resize_size, config.crop_size, config.max_pixels, config.scaled_decode)
        self._decode = partial(decode_image, geometry=geometry)
        self._load: Callable[..., OpenVinoEngine] = partial(OpenVinoEngine, folder / GRAPH, threads=config.threads)
        self.engine = self._load(precision=config.precision)
        self._engines: dict[str | None, OpenVinoEngine] = {None: self.engine}
        self._pool = ThreadPoolExecutor(available_threads(config.decode_threads))
        self._bodies = cycle(bodies)

    def measure(self, batch_size: int, duration_s: float, precision: str | None = None) -> dict[str, float]:
        """Run one micro-batch after another.

        Args:
            batch_size: items of each.
            duration_s: least length of the measurement.
            precision: the arithmetic; None for what the archive's settings say.

        Returns:
            `throughput_per_s`: items per second; `p50_s`: median latency of a micro-batch.
        """
        engine = self._engine(precision)
        for _ in range(WARM_UP_BATCHES):
            self._run(engine, batch_size)
        latencies_s = []
        started_s = time.perf_counter()
        ended_s = started_s
        while ended_s - started_s < duration_s:
            self._run(engine, batch_size)
            now_s = time.perf_counter()
            latencies_s.append(now_s - ended_s)
            ended_s = now_s
        return {
            "throughput_per_s": len(latencies_s) * batch_size / (ended_s - started_s),
            "p50_s": median(latencies_s),
        }

    def logits(self, precision: str, bodies: Sequence[bytes], batch_size: int) -> NDArray[np.float32]:
        """Classify images.

        Args:
            precision: the arithmetic.
            bodies: the images.
            batch_size: the most of them that go through the model together.

        Returns:
            (N, classes), in their order.
        """
        engine = self._engine(precision)
        starts = range(0, len(bodies), batch_size)
        return np.concatenate([self._forward(engine, bodies[at : at + batch_size]) for at in starts])

    def _engine(self, precision: str | None) -> OpenVinoEngine:
        """Load one the first time it is asked for."""
        if precision not in self._engines:
            self._engines[precision] = self._load(precision=precision)
        return self._engines[precision]

    def _run(self, engine: OpenVinoEngine, batch_size: int) -> None:
        self._forward(engine, list(islice(self._bodies, batch_size)))

    def _forward(self, engine: OpenVinoEngine, bodies: Sequence[bytes]) -> NDArray[np.float32]:
        return engine.run({"pixels": self.decoded(bodies)})["logits"]

    def decoded(self, bodies: Sequence[bytes]) -> NDArray[np.uint8]:
        """Decode images as the handler does: (B, S, S, 3), RGB."""
        # A micro-batch of one gains nothing from another thread; the handler has it so too.
        squares = self._pool.map(self._decode, bodies) if len(bodies) > 1 else map(self._decode, bodies)
        return np.stack(list(squares))


def main(folder: str) -> None:
    """Load the archive in `folder`, then measure what is ordered."""
    loop = Loop(Path(folder), photographs())
    answer_orders(loop.engine.description, loop.measure)


if __name__ == "__main__":
    main(sys.argv[1])
