"""Metrics: each node's are scraped once, for Prometheus, for Triton's statistics and for the page.

node:8082/metrics ─> scrape ─> text ─┬> merge -> the gateway's :8002/metrics, each series with its node
                                     └> read_counters -> traffic.py
Envoy's, and `render` of the control process ─> :8002/metrics/gateway, and part of :8002/metrics
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
from deploy.nodes.run.node import Node

RESPONSE_S = 1.5  # seconds for a node's metrics, which are scraped every two seconds
# Labels of the exposition format, with or without a comma after the last.
LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")
SERIES_CACHED = 1 << 16  # cached names of series: about forty models on four nodes

# The series that traffic.py reads: the handlers' (handlers/metrics.py), and two of TorchServe's.
READ = re.compile(
    r"handler_(items|item_errors|requests|outcome_seconds|worker_wait_seconds|executions|execution_seconds|refusals)_total"
    r"|handler_cache_(hits|misses)_total|handler_(request_seconds|batch_size)_bucket"
    r"|handler_(batch_size|engine_wait_seconds|queue_depth|queue_age_seconds)_(sum|count)"
    r"|ts_inference_requests_total|ts_queue_latency_microseconds"
)

# The metrics of the control process: name, type, help.
METRICS = (
    ("gateway_node_up", "gauge", "Whether the node answered the last scrape of its metrics."),
    ("gateway_node_draining", "gauge", "Whether the node receives no new requests because it drains."),
    ("gateway_workers", "gauge", "Configured workers of the version on the node."),
    ("gateway_workers_ready", "gauge", "READY workers of the version on the node."),
    ("gateway_worker_restarts_total", "counter", "Restarts of the workers of the version on the node."),
    ("gateway_settings_unapplied", "gauge", "Whether gateway.yaml cannot be applied."),
    ("gateway_files_rejected", "gauge", "Files of its configuration that Envoy has not accepted."),
    ("gateway_version_lost", "gauge", "Whether the node has restarted and will not restore the version by itself."),
    ("gateway_vector_spaces", "gauge", "Vector spaces of the version's nodes; do not mix the vectors of several."),
    (
        "gateway_vector_space_left_out",
        "gauge",
        "Whether the node gets no requests, since its vectors are of another space.",
    ),
    ("gateway_queued_requests", "gauge", "Requests in TorchServe's queue of the version, at the last poll."),
)


class Counter(NamedTuple):
    """A counter of a version, with the labels that are read, "" for a missing one; other labels are summed over."""

    model: str
    version: str
    name: str
    outcome: str = ""
    size: str = ""
    phase: str = ""
    error: str = ""
    end: str = ""


async def scrape(session: aiohttp.ClientSession, nodes: Iterable[Node]) -> dict[str, str]:
    """Scrape all nodes concurrently; omit those that fail or are slow."""

    async def fetch(node: Node) -> str | None:
        try:
            async with session.get(
                f"{node.metrics}/metrics", timeout=aiohttp.ClientTimeout(total=RESPONSE_S)
            ) as response:
                return await response.text(encoding="utf-8", errors="replace") if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None

    targets = list(nodes)
    texts = await asyncio.gather(*map(fetch, targets))
    return {node.name: text for node, text in zip(targets, texts, strict=True) if text is not None}


def read_counters(text: str) -> dict[Counter, float]:
    """Read the counters of an exposition; skip lines that are not a series."""
    found: dict[Counter, float] = defaultdict(float)
    for line in text.splitlines():
        if line and line[0] != "#":
            series, value = _split(line)
            if value is not None and math.isfinite(value) and (counter := _parse_series(series)) is not None:
                found[counter] += value
    return found


@lru_cache(SERIES_CACHED)
def _parse_series(series: str) -> Counter | None:
    """Parse a series without its value, such as `items_total{ModelName="m",}`; None if it is not read."""
    name, _, labels = series.partition("{")
    if not READ.fullmatch(name):
        return None
    found = {label: ESCAPED.sub(r"\1", value) for label, value in LABEL.findall(labels)}
    # The handlers' label, then TorchServe's.
    model = found.get("ModelName", found.get("model_name", ""))
    version = found.get("ModelVersion", found.get("model_version", ""))
    return Counter(model, version, name, *(found.get(each, "") for each in ("outcome", "size", "phase", "type", "le")))


def _split(line: str) -> tuple[str, float | None]:
    """Return the series and its value, without a timestamp. Label values may contain blanks."""
    end = line.rfind("}") + 1 or line.find(" ")
    try:
        return line[:end].rstrip(), float((line[end:].split() or [""])[0])
    except ValueError:
        return line, None


def merge(texts: Mapping[str, str], gateway: str) -> str:
    """Merge expositions: the series of nodes get the label `node`, those of the gateway none."""
    families: dict[str, list[str]] = {}
    heads: dict[str, dict[str, str]] = {}
    for node, text in (("", gateway), *texts.items()):
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                heads.setdefault(family, {}).setdefault(line[:7], line)  # the first description is used for all
            elif line and line[0] != "#" and _split(line)[1] is not None:
                name = re.split(r"[{ ]", line, maxsplit=1)[0]
                owner = family if family and name.startswith(family) else name
                families.setdefault(owner, []).append(_add_label(line, name, node) if node else line)
    lines = [line for family, members in families.items() for line in (*heads.get(family, {}).values(), *members)]
    return "\n".join(lines) + "\n"


def _add_label(line: str, name: str, node: str) -> str:
    """Add the label `node` to a series; a node's name needs no escape."""
    rest = line.removeprefix(name)
    return f'{name}{{node="{node}",{rest[1:]}' if rest.startswith("{") else f'{name}{{node="{node}"}}{rest}'


def render(fleet: Fleet, scraped: Container[str]) -> str:
    """Render the metrics of the control process; `scraped` are the nodes that answered the last scrape."""
    values: dict[str, list[tuple[str, int]]] = {name: [] for name, _, _ in METRICS}
    values["gateway_settings_unapplied"].append(("", int(bool(fleet.unapplied))))
    values["gateway_files_rejected"].append(("", len(fleet.rejected)))
    for node in fleet.nodes:
        values["gateway_node_up"].append((f'node="{node}"', int(node in scraped)))
        values["gateway_node_draining"].append((f'node="{node}"', int(node in fleet.draining)))
    for model in fleet.registered.values():
        name = _escape(model.name)
        for number, version in model.versions.items():
            if version.spaces:
                labels = f'model="{name}",version="{_escape(number)}"'
                values["gateway_vector_spaces"].append((labels, len({*version.spaces.values()})))
            for node, placement in version.placements.items():
                labels = f'node="{node}",model="{name}",version="{_escape(number)}"'
                values["gateway_workers"].append((labels, placement.workers))
                values["gateway_workers_ready"].append((labels, placement.ready_workers))
                values["gateway_worker_restarts_total"].append((labels, placement.restarts))
                values["gateway_version_lost"].append((labels, int(bool(placement.lost))))
                if version.space:
                    values["gateway_vector_space_left_out"].append((labels, int(version.is_left_out(node))))
                if placement.queued is not None:
                    values["gateway_queued_requests"].append((labels, placement.queued))
    lines = []
    for name, kind, meaning in METRICS:
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"] if values[name] else []
        lines += [f"{name}{{{labels}}} {value}" for labels, value in values[name]]
    return "\n".join(lines) + "\n"


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"')
