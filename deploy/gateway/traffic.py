"""Sums of the nodes' counters, for Triton's statistics and for the page, which makes its charts of them (traffic.js).

    metrics of every node, every two seconds -> growth of each counter ─┬> sums              -> Triton's statistics
                                                                        └> sums of a model   -> the page

A node's counters restart at 0 with the node, and disappear with it. The sums keep their growth: Triton's tools stop if
a counter falls.
"""

import asyncio
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Mapping

import aiohttp

from deploy.gateway import metrics
from deploy.gateway.metrics import Counter
from deploy.gateway.state import Fleet
from torchserve_client.payloads import Json

REQUESTS = "handler_requests_total"  # counted by the handlers
# The counters that the page draws.
CHARTED = re.compile(
    r"handler_(requests|items|item_errors|refusals)_total|handler_(request_seconds|batch_size)_bucket"
    r"|handler_(batch_size|engine_wait_seconds|queue_depth|queue_age_seconds)_(sum|count)|ts_.*"
)
PHASES = {"compute_input": "input", "compute_infer": "infer", "compute_output": "output"}


class Traffic:
    """Sums of the counters of all nodes. One event loop calls it."""

    def __init__(self) -> None:
        self.texts: Mapping[str, str] = {}
        self.time_s = 0.0
        self._last: dict[str, dict[Counter, float]] = {}  # node -> counter -> its last value
        self._sums: dict[Counter, float] = defaultdict(float)
        # (Model, version) -> time of the last scrape with new requests, ms since 1970.
        self._last_ms: dict[tuple[str, str], int] = {}
        #: Distinguishes this process's sums from those of another gateway, or of the process before.
        self.id = secrets.token_hex(8)
        # Model -> counter -> upper end of a bucket, error type or "" -> growth on nodes that were scraped before.
        self._grown: dict[str, dict[str, dict[str, float]]] = {}
        self._scraping = asyncio.Lock()

    async def scrape(self, session: aiohttp.ClientSession, fleet: Fleet, age_s: float = 0.0) -> None:
        """Read the metrics of all nodes, unless the last scrape is younger than `age_s`."""
        async with self._scraping:
            if time.monotonic() - self.time_s >= age_s:
                self.texts = await metrics.scrape(session, fleet.nodes.values())
                scraped = {node: metrics.read_counters(text) for node, text in self.texts.items()}
                self.add(scraped, fleet, time.monotonic())

    def add(self, scraped: Mapping[str, Mapping[Counter, float]], fleet: Fleet, now_s: float) -> None:
        """Add the growth of the counters of the scraped nodes; of removed nodes and models only the sums are kept."""
        self._last = {node: last for node, last in self._last.items() if node in fleet.nodes}
        grown = self._grown = {name: self._grown.get(name, {}) for name in fleet.models}
        for node, values in scraped.items():
            is_known, last = node in self._last, self._last.setdefault(node, {})
            for counter, value in values.items():
                before = last.get(counter, 0.0)
                increase = value - before if value >= before else value  # a counter that fell has restarted at 0
                last[counter] = value
                self._sums[counter] += increase
                if counter.model in grown:
                    sums = grown[counter.model].setdefault(counter.name, defaultdict(float))
                    # The first values of a node are those of its whole life.
                    sums[counter.end or counter.error] += increase if is_known else 0.0
                if increase and counter.name == REQUESTS:
                    self._last_ms[counter.model, counter.version] = time.time_ns() // 1_000_000
        self.time_s = now_s

    def grown(self, model: str) -> Mapping[str, Mapping[str, float]]:
        """Return a model's counters of the page; they do not fall while the model is registered."""
        counters = self._grown.get(model, {})
        return {name: sums for name, sums in counters.items() if CHARTED.fullmatch(name)}

    def triton(self, model: str, version: str) -> Json:
        """Return Triton's statistics of a version without its name and version; times in ns, all integers."""
        sums = {key: total for key, total in self._sums.items() if (key.model, key.version) == (model, version)}

        def total(name: str, **labels: str) -> float:
            wanted = {"name": name, **labels}.items()
            return sum(value for key, value in sums.items() if wanted <= key._asdict().items())

        def duration(count: float, seconds: float) -> dict[str, int]:
            return {"count": round(count), "ns": round(seconds * 1e9)}

        def computes(**labels: str) -> dict[str, dict[str, int]]:
            count = total("handler_executions_total", **labels)
            return {
                name: duration(count, total("handler_execution_seconds_total", phase=phase, **labels))
                for name, phase in PHASES.items()
            }

        outcomes = {
            name: duration(total(REQUESTS, outcome=name), total("handler_outcome_seconds_total", outcome=name))
            for name in ("success", "fail")
        }
        sizes = {key.size for key in sums if key.name == "handler_executions_total" and key.size.isdecimal()}
        return {
            "last_inference": self._last_ms.get((model, version), 0),
            "inference_count": round(total("handler_items_total")),
            "execution_count": round(total("handler_executions_total")),
            "inference_stats": {
                **outcomes,
                "queue": duration(
                    total("handler_engine_wait_seconds_count"), total("handler_worker_wait_seconds_total")
                ),
                **computes(),
                "cache_hit": duration(total("handler_cache_hits_total"), 0),
                "cache_miss": duration(total("handler_cache_misses_total"), 0),
            },
            "batch_stats": [{"batch_size": int(size), **computes(size=size)} for size in sorted(sizes, key=int)],
            "memory_usage": [],
            "response_stats": {},
        }
