"""The nodes' counters, summed so that they never fall -> Triton's statistics of a model.

    scraped: node -> {Series: value} -> Totals.add -> growth of each since it was seen last -> sums
    sums -> statistics(model, version) -> {"inference_count", "inference_stats", "batch_stats", ...}

A node's counters begin again at 0 when it restarts, and go with it when it is removed. What they had grown to stays in
the sums; these are kept in a file, so that they outlive the control process too.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.gateway.scrape import Series

logger = logging.getLogger(__name__)

# What handlers count of requests and of the model's runs (handlers/metrics.py).
REQUESTS = "handler_requests_total"
REQUEST_SECONDS = "handler_request_seconds_total"
QUEUE_SECONDS = "handler_queue_seconds_total"
QUEUE_COUNT = "handler_wait_seconds_count"
ITEMS = "handler_items_total"
EXECUTIONS = "handler_executions_total"
EXECUTION_SECONDS = "handler_execution_seconds_total"
SUMMED = {REQUESTS, REQUEST_SECONDS, QUEUE_SECONDS, QUEUE_COUNT, ITEMS, EXECUTIONS, EXECUTION_SECONDS}
# Labels that tell sums apart; all others are summed over.
KEPT = ("Outcome", "Size", "Phase")
PHASES = {"compute_input": "input", "compute_infer": "infer", "compute_output": "output"}

# Model, version, counter, and its value of each label that is kept, "" for none.
Key = tuple[str, ...]


class Totals:
    """Sums of counters over nodes, workers and their restarts."""

    def __init__(self, path: Path) -> None:
        """Go on from what `save` left; from nothing where there is none, or it cannot be read."""
        self._path = path
        # Node -> counter -> its value when it was seen last.
        self._last: dict[str, dict[Key, float]] = {}
        self._sums: dict[Key, float] = defaultdict(float)
        # (Model, version) -> when its requests were seen to grow last, ms since 1970.
        self._last_ms: dict[tuple[str, str], int] = {}
        self._is_changed = False
        self._load()

    def add(self, scraped: Mapping[str, Mapping[Series, float]], now_ms: int) -> None:
        """Take in what the counters have grown by.

        Args:
            scraped: node -> its series; nodes that did not answer are not in it.
            now_ms: the time, ms since 1970.
        """
        for node, values in scraped.items():
            last = self._last.setdefault(node, {})
            for key, value in _by_key(values).items():
                before = last.get(key, 0.0)
                # A counter that is less than it was has begun anew.
                growth = value - before if value >= before else value
                last[key] = value
                if growth > 0:
                    self._sums[key] += growth
                    self._is_changed = True
                    if key[2] == REQUESTS:
                        self._last_ms[key[0], key[1]] = now_ms

    def statistics(self, model: str, version: str) -> dict[str, Any]:
        """Triton's statistics of a version, but for its name and version; seconds become ns, all are whole numbers."""
        of = {key[2:]: total for key, total in self._sums.items() if key[:2] == (model, version)}

        def total(name: str, **labels: str) -> float:
            wanted = [(number, labels[label]) for number, label in enumerate(KEPT, 1) if label in labels]
            return sum(
                value for key, value in of.items() if key[0] == name and all(key[n] == label for n, label in wanted)
            )

        def duration(count: float, seconds: float) -> dict[str, int]:
            return {"count": round(count), "ns": round(seconds * 1e9)}

        executions = total(EXECUTIONS)
        sizes = sorted({key[2] for key in of if key[0] == EXECUTIONS and key[2].isdecimal()}, key=int)
        return {
            "last_inference": self._last_ms.get((model, version), 0),
            "inference_count": round(total(ITEMS)),
            "execution_count": round(executions),
            "inference_stats": {
                **{
                    outcome: duration(
                        total(REQUESTS, Outcome=outcome),
                        total(REQUEST_SECONDS, Outcome=outcome),
                    )
                    for outcome in ("success", "fail")
                },
                "queue": duration(total(QUEUE_COUNT), total(QUEUE_SECONDS)),
                **{name: duration(executions, total(EXECUTION_SECONDS, Phase=phase)) for name, phase in PHASES.items()},
                "cache_hit": duration(0, 0),
                "cache_miss": duration(0, 0),
            },
            "batch_stats": [
                {
                    "batch_size": int(size),
                    **{
                        name: duration(total(EXECUTIONS, Size=size), total(EXECUTION_SECONDS, Size=size, Phase=phase))
                        for name, phase in PHASES.items()
                    },
                }
                for size in sizes
            ],
            "memory_usage": [],
            "response_stats": {},
        }

    def save(self) -> None:
        """Keep the sums in the file, where they have changed; whoever reads meanwhile sees the old ones."""
        if not self._is_changed:
            return
        document = {
            "sums": [[*key, value] for key, value in self._sums.items()],
            "last": {node: [[*key, value] for key, value in last.items()] for node, last in self._last.items()},
            "last_ms": [[*key, value] for key, value in self._last_ms.items()],
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
        new.replace(self._path)
        self._is_changed = False

    def _load(self) -> None:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            sums = {tuple(map(str, key)): float(value) for *key, value in document["sums"]}
            last = {
                str(node): {tuple(map(str, key)): float(value) for *key, value in values}
                for node, values in document["last"].items()
            }
            last_ms = {(str(model), str(version)): int(ms) for model, version, ms in document["last_ms"]}
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            logger.warning("%s: statistics begin anew (%s)", self._path.name, type(error).__name__)
            return
        self._sums.update(sums)
        self._last, self._last_ms = last, last_ms


def _by_key(values: Mapping[Series, float]) -> dict[Key, float]:
    """A node's counters, summed over labels that do not matter, such as its host's name."""
    found: dict[Key, float] = defaultdict(float)
    for series, value in values.items():
        if series.name in SUMMED:
            labels = dict(series.labels)
            key = (labels.get("ModelName", ""), labels.get("ModelVersion", ""), series.name)
            found[*key, *(labels.get(label, "") for label in KEPT)] += value
    return found
