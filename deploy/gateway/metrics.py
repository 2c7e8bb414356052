"""Metrics: each node's are scraped once, for Prometheus, for Triton's statistics and for the page's charts.

    node:8082/metrics ─> scrape ─> text ─┬> merge -> the gateway's :8002/metrics, each series with its node
                                         └> counters -> traffic.py
    Envoy's own, and `own` of the control process ─> :8002/metrics/gateway, and among those of :8002/metrics

A node that does not answer in time is left out. Names of series are kept parsed from one scrape to the next: 4,200
lines of ten models take 2 ms every two seconds, where prometheus_client's own parser takes 160.
"""

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

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

# The counters that traffic.py reads: the handlers' (handlers/metrics.py), and two of TorchServe's own.
READ = re.compile(
    r"handler_(items|item_errors|requests|request_seconds|queue_seconds|executions|execution_seconds|refusals)_total"
    r"|handler_(request_seconds|batch_size)_bucket"
    r"|handler_(batch_size|wait_seconds|queue_depth|queue_age_seconds)_(sum|count)"
    r"|ts_inference_requests_total|ts_queue_latency_microseconds"
)

# What the control process alone knows: name, type, what it is.
METRICS = (
    ("gateway_node_up", "gauge", "Whether the node gave its metrics when it was asked last."),
    ("gateway_node_draining", "gauge", "Whether the node gets no new requests because somebody decided so."),
    ("gateway_workers", "gauge", "Workers that the version should have on the node."),
    ("gateway_workers_ready", "gauge", "Workers that are READY."),
    ("gateway_worker_restarts_total", "counter", "Times that a worker was seen with another process than before."),
    ("gateway_settings_unapplied", "gauge", "Whether gateway.yaml cannot be applied."),
    ("gateway_files_rejected", "gauge", "Files of its configuration that Envoy has not accepted."),
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
    if not READ.fullmatch(name):
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
    """Make one exposition of many, in which a node's name is the label `node` and the gateway's own have none."""
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
    """Write what the control process knows, with the nodes whose metrics came (`answered`)."""
    values: dict[str, list[tuple[str, int]]] = {name: [] for name, _, _ in METRICS}
    values["gateway_settings_unapplied"].append(("", int(bool(fleet.unapplied))))
    values["gateway_files_rejected"].append(("", len(fleet.rejected)))
    for node in fleet.nodes:
        values["gateway_node_up"].append((f'node="{node}"', int(node in answered)))
        values["gateway_node_draining"].append((f'node="{node}"', int(node in fleet.draining)))
    for model in fleet.registered.values():
        name = _escaped(model.name)
        for number, version in model.versions.items():
            for node, replica in version.replicas.items():
                labels = f'node="{node}",model="{name}",version="{_escaped(number)}"'
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


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"')
