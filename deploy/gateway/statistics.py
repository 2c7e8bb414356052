"""The nodes' counters, summed so that they never fall -> Triton's statistics of a model.

    scraped: node -> {Counter: value} -> Statistics.add -> growth of each since it was seen last -> charts
        -> sums -> triton(model, version) -> {"inference_count", "inference_stats", "batch_stats", ...}

A node's counters begin again at 0 when it restarts, and go with it when it is removed. What they had grown to stays in
the sums; these are kept in a file, so that they outlive the control process too.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from deploy.gateway.metrics import (
    EXECUTION_SECONDS,
    EXECUTIONS,
    ITEMS,
    QUEUE_COUNT,
    QUEUE_SECONDS,
    REQUEST_SECONDS,
    REQUESTS,
    Counter,
)
from deploy.run import node as node_files

logger = logging.getLogger(__name__)

SUMMED = {REQUESTS, REQUEST_SECONDS, QUEUE_SECONDS, QUEUE_COUNT, ITEMS, EXECUTIONS, EXECUTION_SECONDS}
PHASES = {"compute_input": "input", "compute_infer": "infer", "compute_output": "output"}


class Statistics:
    """Sums of counters over nodes, workers and their restarts."""

    def __init__(self, path: Path) -> None:
        """Go on from what `save` left; from nothing where there is none, or it cannot be read."""
        self._path = path
        # Node -> counter -> its value when it was seen last; and the nodes that this process has scraped.
        self._last: dict[str, dict[Counter, float]] = {}
        self._scraped: set[str] = set()
        self._sums: dict[Counter, float] = defaultdict(float)
        # (Model, version) -> when its requests were seen to grow last, ms since 1970.
        self._last_ms: dict[tuple[str, str], int] = {}
        self._is_changed = False
        self._load()

    def add(
        self, scraped: Mapping[str, Mapping[Counter, float]], nodes: Collection[str], now_ms: int
    ) -> dict[Counter, float] | None:
        """Take in what the counters have grown by.

        Args:
            scraped: node -> its counters; nodes that did not answer are not in it.
            nodes: all there are; of others nothing but the sums is kept.
            now_ms: the time, ms since 1970.

        Returns:
            What they grew by on all nodes that this process has scraped before; None where there is none.
        """
        self._last = {node: last for node, last in self._last.items() if node in nodes}
        known = self._scraped & scraped.keys()
        self._scraped = (self._scraped | scraped.keys()) & set(nodes)
        grown: dict[Counter, float] = defaultdict(float)
        for node, values in scraped.items():
            last = self._last.setdefault(node, {})
            for counter, value in values.items():
                # One that is less than it was has begun anew.
                growth = value - last.get(counter, 0.0) if value >= last.get(counter, 0.0) else value
                last[counter] = value
                if node in known:
                    grown[counter] += growth
                if growth > 0 and counter.name in SUMMED:
                    self._sums[counter] += growth
                    self._is_changed = True
                    if counter.name == REQUESTS:
                        self._last_ms[counter.model, counter.version] = now_ms
        return grown if known else None

    def triton(self, model: str, version: str) -> dict[str, Any]:
        """Return Triton's statistics of a version, but for its name and version; times in ns, all are whole numbers."""
        of = {key: total for key, total in self._sums.items() if (key.model, key.version) == (model, version)}

        def total(name: str, **labels: str) -> float:
            """Sum a counter over the labels that are not named."""
            wanted = {"name": name, **labels}.items()
            return sum(value for key, value in of.items() if wanted <= key._asdict().items())

        def duration(count: float, seconds: float) -> dict[str, int]:
            return {"count": round(count), "ns": round(seconds * 1e9)}

        def computes(**labels: str) -> dict[str, dict[str, int]]:
            count = total(EXECUTIONS, **labels)
            return {
                name: duration(count, total(EXECUTION_SECONDS, phase=phase, **labels)) for name, phase in PHASES.items()
            }

        sizes = sorted({key.size for key in of if key.name == EXECUTIONS and key.size.isdecimal()}, key=int)
        return {
            "last_inference": self._last_ms.get((model, version), 0),
            "inference_count": round(total(ITEMS)),
            "execution_count": round(total(EXECUTIONS)),
            "inference_stats": {
                **{
                    name: duration(total(REQUESTS, outcome=name), total(REQUEST_SECONDS, outcome=name))
                    for name in ("success", "fail")
                },
                "queue": duration(total(QUEUE_COUNT), total(QUEUE_SECONDS)),
                **computes(),
                "cache_hit": duration(0, 0),
                "cache_miss": duration(0, 0),
            },
            "batch_stats": [{"batch_size": int(size), **computes(size=size)} for size in sizes],
            "memory_usage": [],
            "response_stats": {},
        }

    def save(self) -> None:
        """Keep the sums in the file, where they have changed; who reads meanwhile sees the old ones.

        Raises:
            OSError: it cannot be written.
        """
        if not self._is_changed:
            return

        def rows(counters: Mapping[Counter, float]) -> list[list[object]]:
            # The labels of what is summed end with the phase.
            return [[*key[:6], value] for key, value in counters.items() if key.name in SUMMED]

        document = {
            "sums": rows(self._sums),
            "last": {node: rows(last) for node, last in self._last.items()},
            "last_ms": [[*key, value] for key, value in self._last_ms.items()],
        }
        node_files.replace(self._path, json.dumps(document, separators=(",", ":")))
        self._is_changed = False

    def _load(self) -> None:
        def counters(rows: Any) -> dict[Counter, float]:
            return {Counter(*map(str, key)): float(value) for *key, value in rows}

        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            sums = counters(document["sums"])
            last = {str(node): counters(rows) for node, rows in document["last"].items()}
            last_ms = {(str(model), str(version)): int(ms) for model, version, ms in document["last_ms"]}
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            logger.warning("%s: statistics begin anew (%s)", self._path.name, type(error).__name__)
            return
        self._sums.update(sums)
        self._last, self._last_ms = last, last_ms
