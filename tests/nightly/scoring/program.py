"""Scores rows on a Ray of two cores, in the Python of .extras/ray: python -m tests.nightly.scoring.program ORDERS.json

[{"rows": [{"path": ...}], "archive": ..., "column": ..., ...}]     arguments of score(); `read` names a column of
-> [[{"path": ..., "answer": ..., "error": ...}]], the last line    paths whose files become a column `bytes`
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.data

from deploy.hosts.scoring import score


def answer(order: dict[str, Any]) -> list[dict[str, Any]]:
    rows = order.pop("rows")
    if read := order.pop("read", None):
        rows = [{**row, "bytes": Path(row[read]).read_bytes()} for row in rows]
    scored = score(ray.data.from_items(rows, override_num_blocks=order.pop("blocks", 2)), **order)
    return list(scored.take_all())


def main(orders: str) -> None:
    # A short path: sockets are in it.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=2, object_store_memory=200 * 2**20, include_dashboard=False, log_to_driver=False, _temp_dir=folder
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        print(json.dumps([answer(order) for order in json.loads(Path(orders).read_text())]))
        ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
