"""Metrics of the nodes and of the gateway, as Prometheus writes and reads them.

    node:8082/metrics ─> scrape ─> text ─┬> parse -> {Series: value} -> statistics
                                         └> merge -> the gateway's :8002/metrics, each series with its node
    Envoy's own, and `own` of the control process ─> :8002/metrics/gateway, and among those of :8002/metrics

A node that does not answer in time is left out. Series' names are kept parsed from one scrape to the next: ten models'
4,200 lines take 2 ms every two seconds, where prometheus_client's own parser takes 160.
"""

import asyncio
import re
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import aiohttp

from deploy.gateway.nodes import Watch
from deploy.gateway.state import Fleet
from deploy.run.node import Node

# Seconds for a node's metrics: they are asked every two.
ANSWER_S = 1.5
# Labels as the exposition format writes them, with a comma after the last or without.
LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")
# Distinct series whose names are kept parsed: those of some forty models on four nodes.
SERIES_KEPT = 1 << 16
# What the control process alone knows: name, type, what it is.
METRICS = (
    ("gateway_node_up", "gauge", "Whether the node gave its metrics when it was asked last."),
    ("gateway_node_draining", "gauge", "Whether the node gets no new requests because somebody decided so."),
    ("gateway_workers", "gauge", "Workers that the version should have on the node."),
    ("gateway_workers_ready", "gauge", "Workers that are READY."),
    ("gateway_worker_restarts_total", "counter", "Times that a worker was seen with another process than before."),
    ("gateway_queued_requests", "gauge", "Requests in TorchServe's queue of the version, when it was asked last."),
)


class Series(NamedTuple):
    """One series of metrics: its name and its labels, each with its value."""

    name: str
    labels: frozenset[tuple[str, str]]


@lru_cache(SERIES_KEPT)
def series(text: str) -> Series:
    """Take apart what stands before a value, such as `items_total{ModelName="m",}`."""
    name, _, labels = text.partition("{")
    return Series(name, frozenset((label, _unescape(value)) for label, value in LABEL.findall(labels)))


def _unescape(value: str) -> str:
    return ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], value) if "\\" in value else value


def parse(text: str) -> dict[Series, float]:
    """Return every series of an exposition with its value; lines that are none are left out."""
    found = {}
    for line in text.splitlines():
        if line and line[0] != "#":
            name, value = _split(line)
            if value is not None:
                found[series(name)] = value
    return found


def _split(line: str) -> tuple[str, float | None]:
    """Return the series and its value; a time after the value is left out. Labels' values may hold blanks."""
    end = line.rfind("}") + 1 or line.find(" ")
    try:
        return line[:end].rstrip(), float((line[end:].split() or [""])[0])
    except ValueError:
        return line, None


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
    """Give a series its node; a node's name needs no escape."""
    rest = line.removeprefix(name)
    return f'{name}{{node="{node}",{rest[1:]}' if rest.startswith("{") else f'{name}{{node="{node}"}}{rest}'


def own(fleet: Fleet, answered: Container[str], watches: Mapping[str, Watch]) -> str:
    """Write what the control process knows of nodes and workers.

    Args:
        fleet: what is served, and who drains.
        answered: the nodes whose metrics came.
        watches: node -> what its management API said last.
    """
    values: dict[str, list[tuple[dict[str, str], int]]] = {name: [] for name, _, _ in METRICS}
    for node in fleet.nodes:
        values["gateway_node_up"].append(({"node": node}, int(node in answered)))
        values["gateway_node_draining"].append(({"node": node}, int(node in fleet.draining)))
    for model in fleet.registered.values():
        for version in model.versions.values():
            for node, replica in version.replicas.items():
                labels = {"node": node, "model": model.name, "version": version.version}
                values["gateway_workers"].append((labels, replica.workers))
                values["gateway_workers_ready"].append((labels, replica.ready_workers))
    for node, watch in watches.items():
        for (name, number), registered in watch.models.items():
            labels = {"node": node, "model": name, "version": number}
            values["gateway_worker_restarts_total"].append((labels, registered.restarts))
            # What a node said last that does not answer is no news.
            if watch.is_up:
                values["gateway_queued_requests"].append((labels, registered.queued))
    lines = []
    for name, kind, meaning in METRICS:
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{_written(labels)}}} {value}" for labels, value in values[name]]
    return "\n".join(lines) + "\n"


def _written(labels: Mapping[str, str]) -> str:
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in labels.items()
    }
    return ",".join(f'{name}="{value}"' for name, value in escaped.items())


async def scrape(session: aiohttp.ClientSession, nodes: Iterable[Node]) -> dict[str, str]:
    """Ask every node at once for its metrics; those that fail or are slow are not among the answers."""
    asked = list(nodes)
    texts = await asyncio.gather(*(_text(session, node) for node in asked))
    return {node.name: text for node, text in zip(asked, texts, strict=True) if text is not None}


async def _text(session: aiohttp.ClientSession, node: Node) -> str | None:
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    try:
        async with session.get(f"{node.metrics}/metrics", timeout=timeout) as answer:
            return await answer.text(encoding="utf-8", errors="replace") if answer.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None
