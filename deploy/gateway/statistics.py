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
from typing import Any, NamedTuple

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


class Growth(NamedTuple):
    """What one node's counters grew by.

    Attributes:
        seconds: since it was scraped before.
        counters: by how much, 0 or more.
    """

    seconds: float
    counters: Mapping[Counter, float]


class Statistics:
    """Sums of counters over nodes, workers and their restarts."""

    def __init__(self, path: Path) -> None:
        """Go on from what `save` left; from nothing where there is none, or it cannot be read."""
        self._path = path
        # Node -> counter -> its value when it was seen last; and when that was, by this process' clock.
        self._last: dict[str, dict[Counter, float]] = {}
        self._seen_s: dict[str, float] = {}
        self._sums: dict[Counter, float] = defaultdict(float)
        # (Model, version) -> when its requests were seen to grow last, ms since 1970.
        self._last_ms: dict[tuple[str, str], int] = {}
        self._is_changed = False
        self._load()

    def add(
        self, scraped: Mapping[str, Mapping[Counter, float]], nodes: Collection[str], now_s: float, now_ms: int
    ) -> list[Growth]:
        """Take in what the counters have grown by.

        Args:
            scraped: node -> its counters; nodes that did not answer are not in it.
            nodes: all there are; of others nothing but the sums is kept.
            now_s: the time, by a clock that does not run backwards.
            now_ms: the time, ms since 1970.

        Returns:
            What each node's grew by, of those that this process has scraped before.
        """
        self._last = {node: last for node, last in self._last.items() if node in nodes}
        self._seen_s = {node: seen_s for node, seen_s in self._seen_s.items() if node in nodes}
        found = []
        for node, values in scraped.items():
            last = self._last.setdefault(node, {})
            grown = {}
            for key, value in values.items():
                before = last.get(key, 0.0)
                # A counter that is less than it was has begun anew.
                grown[key] = value - before if value >= before else value
                last[key] = value
            self._sum(grown, now_ms)
            if node in self._seen_s and now_s > self._seen_s[node]:
                found.append(Growth(now_s - self._seen_s[node], grown))
            self._seen_s[node] = now_s
        return found

    def _sum(self, grown: Mapping[Counter, float], now_ms: int) -> None:
        for key, growth in grown.items():
            if growth > 0 and key.name in SUMMED:
                self._sums[key] += growth
                self._is_changed = True
                if key.name == REQUESTS:
                    self._last_ms[key.model, key.version] = now_ms

    def triton(self, model: str, version: str) -> dict[str, Any]:
        """Return Triton's statistics of a version, but for its name and version; times in ns, all are whole numbers."""
        of = {key: total for key, total in self._sums.items() if (key.model, key.version) == (model, version)}

        def total(name: str, outcome: str = "", size: str = "", phase: str = "") -> float:
            """Sum a counter over the labels that are not named."""
            return sum(
                value
                for key, value in of.items()
                if key.name == name
                and outcome in ("", key.outcome)
                and size in ("", key.size)
                and phase in ("", key.phase)
            )

        def duration(count: float, seconds: float) -> dict[str, int]:
            return {"count": round(count), "ns": round(seconds * 1e9)}

        def computes(size: str = "") -> dict[str, dict[str, int]]:
            count = total(EXECUTIONS, size=size)
            return {
                name: duration(count, total(EXECUTION_SECONDS, size=size, phase=phase))
                for name, phase in PHASES.items()
            }

        sizes = sorted({key.size for key in of if key.name == EXECUTIONS and key.size.isdecimal()}, key=int)
        return {
            "last_inference": self._last_ms.get((model, version), 0),
            "inference_count": round(total(ITEMS)),
            "execution_count": round(total(EXECUTIONS)),
            "inference_stats": {
                **{name: duration(total(REQUESTS, name), total(REQUEST_SECONDS, name)) for name in ("success", "fail")},
                "queue": duration(total(QUEUE_COUNT), total(QUEUE_SECONDS)),
                **computes(),
                "cache_hit": duration(0, 0),
                "cache_miss": duration(0, 0),
            },
            "batch_stats": [{"batch_size": int(size), **computes(size)} for size in sizes],
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
