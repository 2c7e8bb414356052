"""Metrics: each node's are scraped once, for Prometheus, for Triton's statistics and for the page's charts.

    node:8082/metrics ─> scrape ─> text ─┬> merge -> the gateway's :8002/metrics, each series with its node
                                         └> counters -> Statistics.add -> what each grew by -> charts
                                                            └> sums -> triton(model, version)
    Envoy's own, and `own` of the control process ─> :8002/metrics/gateway, and among those of :8002/metrics

A node that does not answer in time is left out. Names of series are kept parsed from one scrape to the next: 4,200
lines of ten models take 2 ms every two seconds, where prometheus_client's own parser takes 160.

A node's counters begin again at 0 when it restarts, and go with it when it is removed. What they had grown to stays in
the sums: Triton's tools stop at a counter that falls.
"""

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import aiohttp

from deploy.gateway.state import Fleet
from deploy.run.node import Node

# Seconds for a node's metrics: they are asked every two.
ANSWER_S = 1.5
# Labels as the exposition format writes them, with a comma after the last or without.
LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")
# Distinct series whose names are kept parsed: those of some forty models on four nodes.
SERIES_KEPT = 1 << 16

# What handlers count of requests and of the model's runs (handlers/metrics.py), for Triton's statistics and the charts.
REQUESTS = "handler_requests_total"
REQUEST_SECONDS = "handler_request_seconds_total"
QUEUE_SECONDS = "handler_queue_seconds_total"
QUEUE_COUNT = "handler_wait_seconds_count"
ITEMS = "handler_items_total"
EXECUTIONS = "handler_executions_total"
EXECUTION_SECONDS = "handler_execution_seconds_total"
SUMMED = {REQUESTS, REQUEST_SECONDS, QUEUE_SECONDS, QUEUE_COUNT, ITEMS, EXECUTIONS, EXECUTION_SECONDS}
PHASES = {"compute_input": "input", "compute_infer": "infer", "compute_output": "output"}
# For the charts alone; the first five are histograms.
REQUEST, BATCH_SIZE, WAIT = "handler_request_seconds", "handler_batch_size", "handler_wait_seconds"
QUEUE_DEPTH, QUEUE_AGE = "handler_queue_depth", "handler_queue_age_seconds"
ITEM_ERRORS, REFUSALS = "handler_item_errors_total", "handler_refusals_total"
# TorchServe's own.
FRONTEND_REQUESTS, FRONTEND_WAIT_US = "ts_inference_requests_total", "ts_queue_latency_microseconds"
READ = {
    *(*SUMMED, ITEM_ERRORS, REFUSALS, FRONTEND_REQUESTS, FRONTEND_WAIT_US, f"{REQUEST}_bucket", f"{BATCH_SIZE}_bucket"),
    *(f"{name}_{part}" for name in (BATCH_SIZE, WAIT, QUEUE_DEPTH, QUEUE_AGE) for part in ("sum", "count")),
}

# What the control process alone knows: name, type, what it is.
METRICS = (
    ("gateway_node_up", "gauge", "Whether the node gave its metrics when it was asked last."),
    ("gateway_node_draining", "gauge", "Whether the node gets no new requests because somebody decided so."),
    ("gateway_workers", "gauge", "Workers that the version should have on the node."),
    ("gateway_workers_ready", "gauge", "Workers that are READY."),
    ("gateway_worker_restarts_total", "counter", "Times that a worker was seen with another process than before."),
    ("gateway_queued_requests", "gauge", "Requests in TorchServe's queue of the version, when it was asked last."),
)


class Counter(NamedTuple):
    """A counter of a version: its name, and its value of the labels that tell counters apart, "" for none.

    All other labels, such as the host's name, are summed over.
    """

    model: str
    version: str
    name: str
    outcome: str = ""
    size: str = ""
    phase: str = ""
    error: str = ""
    end: str = ""


# -- reading ----------------------------------------------------------------------------------------------------------


async def scrape(session: aiohttp.ClientSession, nodes: Iterable[Node]) -> dict[str, str]:
    """Ask every node at once for its metrics; those that fail or are slow are not among the answers."""

    async def text(node: Node) -> str | None:
        try:
            async with session.get(f"{node.metrics}/metrics", timeout=aiohttp.ClientTimeout(total=ANSWER_S)) as answer:
                return await answer.text(encoding="utf-8", errors="replace") if answer.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None

    asked = list(nodes)
    texts = await asyncio.gather(*map(text, asked))
    return {node.name: text for node, text in zip(asked, texts, strict=True) if text is not None}


def counters(text: str) -> dict[Counter, float]:
    """Return the counters of an exposition that are read; lines that are no series are left out."""
    found: dict[Counter, float] = defaultdict(float)
    for line in text.splitlines():
        if line and line[0] != "#":
            series, value = _split(line)
            if value is not None and math.isfinite(value) and (counter := _counter(series)) is not None:
                found[counter] += value
    return found


@lru_cache(SERIES_KEPT)
def _counter(series: str) -> Counter | None:
    """Take apart what stands before a value, such as `items_total{ModelName="m",}`; None of what is not read."""
    name, _, labels = series.partition("{")
    if name not in READ:
        return None
    found = {label: ESCAPED.sub(r"\1", value) for label, value in LABEL.findall(labels)}
    # The handlers' metrics have the first of each, TorchServe's own the second.
    model = found.get("ModelName", found.get("model_name", ""))
    version = found.get("ModelVersion", found.get("model_version", ""))
    return Counter(model, version, name, *(found.get(each, "") for each in ("Outcome", "Size", "Phase", "Type", "le")))


def _split(line: str) -> tuple[str, float | None]:
    """Return the series and its value; a time after the value is left out. Labels' values may hold blanks."""
    end = line.rfind("}") + 1 or line.find(" ")
    try:
        return line[:end].rstrip(), float((line[end:].split() or [""])[0])
    except ValueError:
        return line, None


# -- writing ----------------------------------------------------------------------------------------------------------


def merge(texts: Mapping[str, str], gateway: str) -> str:
    """Make one exposition of many: those of one name together, as the format wants them.

    Args:
        texts: each node's, by its name, which becomes the label `node`.
        gateway: Envoy's own and the control process', which get no label.
    """
    families: dict[str, list[str]] = {}
    heads: dict[str, dict[str, str]] = {}
    for node, text in (("", gateway), *texts.items()):
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                # The first that describes it does so for all.
                heads.setdefault(family, {}).setdefault(line[:7], line)
            elif line and line[0] != "#" and _split(line)[1] is not None:
                name = re.split(r"[{ ]", line, maxsplit=1)[0]
                of = family if family and name.startswith(family) else name
                families.setdefault(of, []).append(_labelled(line, name, node) if node else line)
    lines = [line for family, members in families.items() for line in (*heads.get(family, {}).values(), *members)]
    return "\n".join(lines) + "\n"


def _labelled(line: str, name: str, node: str) -> str:
    """Add the label `node` to a series; a node's name needs no escape."""
    rest = line.removeprefix(name)
    return f'{name}{{node="{node}",{rest[1:]}' if rest.startswith("{") else f'{name}{{node="{node}"}}{rest}'


def own(fleet: Fleet, answered: Container[str]) -> str:
    """Write what the control process knows of nodes and workers.

    Args:
        fleet: what is served, and who drains.
        answered: the nodes whose metrics came.
    """
    values: dict[str, list[tuple[str, int]]] = {name: [] for name, _, _ in METRICS}
    for node in fleet.nodes:
        values["gateway_node_up"].append((f'node="{node}"', int(node in answered)))
        values["gateway_node_draining"].append((f'node="{node}"', int(node in fleet.draining)))
    for model in fleet.registered.values():
        name = model.name.replace("\\", "\\\\").replace('"', '\\"')
        for number, version in model.versions.items():
            for node, replica in version.replicas.items():
                labels = f'node="{node}",model="{name}",version="{number}"'
                values["gateway_workers"].append((labels, replica.workers))
                values["gateway_workers_ready"].append((labels, replica.ready_workers))
                values["gateway_worker_restarts_total"].append((labels, replica.restarts))
                if replica.queued is not None:
                    values["gateway_queued_requests"].append((labels, replica.queued))
    lines = []
    for name, kind, meaning in METRICS:
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{labels}}} {value}" for labels, value in values[name]]
    return "\n".join(lines) + "\n"


# -- Triton's statistics ----------------------------------------------------------------------------------------------


class Statistics:
    """Sums of counters over nodes, workers and their restarts."""

    def __init__(self) -> None:
        """Begin at what the nodes have counted."""
        # Node -> counter -> its value when it was seen last.
        self._last: dict[str, dict[Counter, float]] = {}
        self._sums: dict[Counter, float] = defaultdict(float)
        # (Model, version) -> when its requests were seen to grow last, ms since 1970.
        self._last_ms: dict[tuple[str, str], int] = {}

    def add(
        self, scraped: Mapping[str, Mapping[Counter, float]], nodes: Collection[str], now_ms: int
    ) -> dict[Counter, float] | None:
        """Add what the counters have grown by.

        Args:
            scraped: node -> its counters; nodes that did not answer are not in it.
            nodes: all there are; of others nothing but the sums is kept.
            now_ms: the time, ms since 1970.

        Returns:
            What they grew by on the nodes that were scraped before; None where there is none.
        """
        known = self._last.keys() & scraped.keys() & set(nodes)
        self._last = {node: last for node, last in self._last.items() if node in nodes}
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

        outcomes = {
            name: duration(total(REQUESTS, outcome=name), total(REQUEST_SECONDS, outcome=name))
            for name in ("success", "fail")
        }
        sizes = sorted({key.size for key in of if key.name == EXECUTIONS and key.size.isdecimal()}, key=int)
        return {
            "last_inference": self._last_ms.get((model, version), 0),
            "inference_count": round(total(ITEMS)),
            "execution_count": round(total(EXECUTIONS)),
            "inference_stats": {
                **outcomes,
                "queue": duration(total(QUEUE_COUNT), total(QUEUE_SECONDS)),
                **computes(),
                "cache_hit": duration(0, 0),
                "cache_miss": duration(0, 0),
            },
            "batch_stats": [{"batch_size": int(size), **computes(size=size)} for size in sizes],
            "memory_usage": [],
            "response_stats": {},
        }
