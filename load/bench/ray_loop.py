"""Scores a Dataset with `deploy.scoring.score` on a Ray of this machine alone: the Python is that of .extras/ray.

python -m load.bench.ray_loop ARCHIVE     one JSON object a line
    -> {"engine": "ray 2.60.0"}                                                         Ray runs
    <- {"inputs": "photographs", "count": 640, "batch_size": 16}                        on stdin, any number of times
    -> {"throughput_per_s": 78.3, "first_s": 9.1}               inputs per second from the first results to the last

Photographs are files that Ray reads, texts are rows that it holds. Each measurement has an actor of its own, which
loads the archive before the first result (`first_s`): a job's fixed cost, and no part of the throughput.
"""

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import ray
import ray.data

from deploy.scoring import score
from load.bench.orders import answer_orders
from load.bench.photographs import photographs
from load.bench.sentences import texts


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how much of the machine Ray is given."""

    # Bytes of its object store: more than all inputs of a measurement.
    object_store: int = 512 * 2**20
    # Batches that a block of the Dataset has: results come a block at a time.
    batches_a_block: int = 2


TUNING = Tuning()
# Where Ray's workers find this project.
ROOT = Path(__file__).parents[2]


class Loop:
    """Scores as many inputs as it is told."""

    def __init__(self, archive: str, folder: Path) -> None:
        """Take an archive, and a folder for files."""
        self._archive = archive
        self._cores = len(os.sched_getaffinity(0))
        self._sources = []
        for number, body in enumerate(photographs()):
            self._sources.append(folder / f"source-{number}.jpg")
            self._sources[-1].write_bytes(body)
        self._folder = folder

    def measure(self, inputs: str, count: int, batch_size: int) -> dict[str, float]:
        """Score once.

        Args:
            inputs: "photographs" or "texts".
            count: how many.
            batch_size: those of a batch.
        """
        dataset = self._photographs(count, batch_size) if inputs == "photographs" else self._texts(count, batch_size)
        column = "bytes" if inputs == "photographs" else "text"
        # Ray counts one core for the actor, so that it has one left to read with; the model has all, as without Ray.
        scored = score(dataset, self._archive, column=column, batch_size=batch_size, threads=self._cores)
        started_s = time.perf_counter()
        times_s, sizes = [], []
        for batch in scored.iter_batches(batch_size=None, batch_format="pyarrow"):
            if failed := batch.num_rows - batch.column("error").null_count:
                raise ValueError(f"{failed} of {batch.num_rows} inputs failed")
            times_s.append(time.perf_counter())
            sizes.append(batch.num_rows)
        per_s = sum(sizes[1:]) / (times_s[-1] - times_s[0])
        return {"throughput_per_s": per_s, "first_s": times_s[0] - started_s}

    def _photographs(self, count: int, batch_size: int) -> Any:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        for number, source in enumerate(islice(cycle(self._sources), count)):
            os.link(source, folder / f"{number:06}.jpg")
        return ray.data.read_binary_files(str(folder), override_num_blocks=_blocks(count, batch_size))

    def _texts(self, count: int, batch_size: int) -> Any:
        rows = [{"text": text} for text in islice(cycle(texts()), count)]
        return ray.data.from_items(rows, override_num_blocks=_blocks(count, batch_size))


def _blocks(count: int, batch_size: int) -> int:
    return max(2, count // (TUNING.batches_a_block * batch_size))


def main(archive: str) -> None:
    """Start a Ray of this process, then measure what is ordered."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=len(os.sched_getaffinity(0)),
            object_store_memory=TUNING.object_store,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
            _temp_dir=folder,
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        try:
            files = Path(folder, "files")
            files.mkdir()
            answer_orders(f"ray {ray.__version__}", Loop(archive, files).measure)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
