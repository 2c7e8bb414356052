"""Reads what Prometheus would read of each node: text -> series, and texts of several nodes -> one.

    node:8082/metrics ─> text ─┬> parse -> {Series: value} -> statistics, the page's charts
                               └> merge -> the gateway's :8002/metrics, each series with its node
    Envoy's own, the control process' own -> :8002/metrics/gateway, and among those of :8002/metrics

A node that does not answer in time is left out. Series' names are kept parsed from one scrape to the next: ten models'
4,200 lines take 2 ms every two seconds, where prometheus_client's own parser takes 160.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

import aiohttp

from deploy.run.node import Node

# Seconds for a node's metrics: they are asked every two.
ANSWER_S = 1.5
# Labels as the exposition format writes them, with a comma after the last or without.
LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")
# Distinct series whose names are kept parsed: those of some forty models on four nodes.
SERIES_KEPT = 1 << 16


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
    """Every series of an exposition with its value; lines that are none are left out."""
    found = {}
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        name, value = _split(line)
        try:
            found[series(name)] = float(value)
        except ValueError:
            continue
    return found


def _split(line: str) -> tuple[str, str]:
    """The series and its value; a time after the value is left out. Labels' values may hold blanks."""
    end = line.rfind("}") + 1 or line.find(" ")
    return line[:end].rstrip(), (line[end:].split() or [""])[0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def merge(texts: Mapping[str, str], gateway: str) -> str:
    """Make one exposition of many: those of one name together, as the format wants them.

    Args:
        texts: each node's, by its name, which becomes the label `node`.
        gateway: Envoy's own and the control process', which get no label.
    """
    families: dict[str, list[str]] = {}
    heads: dict[str, list[str]] = {}
    for node, text in (("", gateway), *texts.items()):
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                # The first that describes it does so for all.
                if not any(known.startswith(line[:7]) for known in head):
                    head.append(line)
            elif line and line[0] != "#" and _is_number(_split(line)[1]):
                name = line[: min(end for end in (line.find("{"), line.find(" "), len(line)) if end >= 0)]
                of = family if family and name.startswith(family) else name
                families.setdefault(of, []).append(_labelled(line, node) if node else line)
    lines = [line for family, members in families.items() for line in (*heads.get(family, ()), *members)]
    return "\n".join(lines) + "\n"


def _labelled(line: str, node: str) -> str:
    """Give a series its node; a node's name needs no escape."""
    name, brace, rest = line.partition("{")
    if brace:
        return f'{name}{{node="{node}",{rest}'
    name, _, value = line.partition(" ")
    return f'{name}{{node="{node}"}} {value}'


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
