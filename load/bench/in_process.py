"""Runs the loop without a server: decode and the same engine, in a process that does nothing else.

python -m load.bench.in_process FOLDER     one JSON object a line
    -> {"engine": "openvino cpu bf16"}                              loaded
    <- {"batch_size": 16, "duration_s": 8}                          on stdin, any number of times
    -> {"throughput_per_s": 80.1, "p50_s": 0.199}                   items per second; latency of a micro-batch
"""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import numpy as np
import yaml

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
        self.engine = OpenVinoEngine(folder / "model.xml", precision=config.precision, threads=config.threads)
        self._pool = ThreadPoolExecutor(available_threads(config.decode_threads))
        self._bodies = cycle(bodies)

    def measure(self, batch_size: int, duration_s: float) -> dict[str, float]:
        """Run one micro-batch after another.

        Args:
            batch_size: items of each.
            duration_s: least length of the measurement.

        Returns:
            `throughput_per_s`: items per second; `p50_s`: median latency of a micro-batch.
        """
        for _ in range(WARM_UP_BATCHES):
            self._run(batch_size)
        latencies_s = []
        started_s = time.perf_counter()
        ended_s = started_s
        while ended_s - started_s < duration_s:
            self._run(batch_size)
            now_s = time.perf_counter()
            latencies_s.append(now_s - ended_s)
            ended_s = now_s
        return {
            "throughput_per_s": len(latencies_s) * batch_size / (ended_s - started_s),
            "p50_s": median(latencies_s),
        }

    def _run(self, batch_size: int) -> None:
        bodies = list(islice(self._bodies, batch_size))
        # A micro-batch of one gains nothing from another thread; the handler has it so too.
        decoded = self._pool.map(self._decode, bodies) if batch_size > 1 else map(self._decode, bodies)
        self.engine.run({"pixels": np.stack(list(decoded))})


def main(folder: str) -> None:
    """Load the archive in `folder`, then measure what is ordered."""
    loop = Loop(Path(folder), photographs())
    answer_orders(loop.engine.description, loop.measure)


if __name__ == "__main__":
    main(sys.argv[1])
