"""Draw the diagrams of the documentation: python -m docs.diagrams [--check]

Each diagram is a list of boxes, bars and arrows in pixels, on a white card that a dark page keeps.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent / "images"
INK = "#1a1a1a"
GREY = "#6b6b6b"
# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
PALE = "#f3f5f7"
COLOURS = (INK, BLUE, ORANGE, GREEN, "#CC79A7", "#D55E00", "#56B4E9")
# Pixels of the bars of one figure.
HEIGHT = 68


def text(x: float, y: float, words: str, *, size: int = 13, anchor: str = "middle", fill: str = INK) -> str:
    """Return words at a place."""
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{escape(words)}</text>'


def box(place: tuple[float, float], size: tuple[float, float], lines: Sequence[str], fill: str = PALE) -> str:
    """Return a box whose first line is its name."""
    (x, y), (width, height) = place, size
    ink = "white" if fill in (BLUE, GREEN) else INK
    parts = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{INK}"/>']
    top = y + height / 2 - 8 * (len(lines) - 1) + 4
    for number, line in enumerate(lines):
        parts.append(text(x + width / 2, top + 16 * number, line, size=13 if number == 0 else 11, fill=ink))
    return "".join(parts)


def arrow(x: float, y: float, to_x: float, to_y: float, words: str = "") -> str:
    """Return an arrow with words above its middle."""
    line = f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{INK}" stroke-width="1.3" marker-end="url(#tip)"/>'
    return line + (text((x + to_x) / 2, (y + to_y) / 2 - 7, words, size=11, fill=GREY) if words else "")


def bar(x: float, y: float, width: float, words: str, fill: str) -> str:
    """Return a bar of a timeline."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="24" rx="3" fill="{fill}"/>' + text(
        x + width / 2, y + 16, words, size=11, fill="white"
    )


def card(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """Return the SVG file of a diagram."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="Inter, Helvetica, Arial, sans-serif" role="img" aria-label="{escape(title)}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>'
        f'<rect width="{width}" height="{height}" rx="8" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def draw_request_path() -> str:
    """Draw the way of three clients' requests through one forward pass."""
    rows = (42, 96, 150)
    parts = [box((16, y), (104, 40), [f"client {i + 1}"]) for i, y in enumerate(rows)]
    parts += [
        *(arrow(120, y + 12, 176, 108 + 4 * i) for i, y in enumerate(rows)),
        box((176, 82), (140, 68), ["gateway (optional)", "keys, limits, routes"], GREEN),
        arrow(316, 116, 352, 116),
        box((352, 82), (136, 68), ["TorchServe 0.12.0", "queues the requests"], BLUE),
        arrow(488, 116, 540, 116, "batch"),
        f'<rect x="540" y="14" width="444" height="204" rx="8" fill="none" stroke="{GREY}" stroke-dasharray="4 3"/>',
        text(762, 32, "worker: one archive, BatchHandler", size=11, fill=GREY),
        *(box((552, y), (90, 40), [f"decode {i + 1}"], ORANGE) for i, y in enumerate(rows)),
        *(arrow(642, y + 20, 690, 108 + 8 * i) for i, y in enumerate(rows)),
        box((690, 62), (116, 108), ["one forward pass", "for requests 1, 2, 3"], BLUE),
        *(arrow(806, 108 + 8 * i, 854, y + 20) for i, y in enumerate(rows)),
        *(box((854, y), (118, 40), [f"response {i + 1}"], GREEN) for i, y in enumerate(rows)),
    ]
    return card(1000, 232, "Three clients' requests share one forward pass; each gets its own response", parts)


def draw_stock() -> str:
    """Draw four requests, one of them corrupt, with a stock handler and with this project."""
    parts = [
        text(20, 28, "Stock image_classifier: decodes in a loop; one corrupt image fails the batch", anchor="start")
    ]
    parts += [bar(20 + 90 * i, 42, 84, f"decode {i + 1}", BLUE) for i in range(3)]
    parts += [bar(290, 42, 84, "corrupt", "#B00020"), arrow(374, 54, 600, 54)]
    parts += [text(606, 58, "4 errors: no image reaches the forward pass", anchor="start")]
    parts += [f'<line x1="20" y1="84" x2="860" y2="84" stroke="{PALE}"/>']
    parts += [text(20, 110, "This project: decodes in threads; each request has its own error", anchor="start")]
    parts += [bar(20 + 90 * (i % 2), 124 + 28 * (i // 2), 84, f"decode {i + 1}", GREEN) for i in range(3)]
    parts += [bar(110, 152, 84, "corrupt", "#B00020"), arrow(194, 164, 600, 164)]
    parts += [text(606, 168, "1 error", anchor="start")]
    parts += [bar(204, 124, 190, "one forward pass, 1 to 3", BLUE), arrow(394, 136, 600, 136)]
    parts += [
        text(606, 140, "3 responses", anchor="start"),
        text(20, 204, "time →", size=11, anchor="start", fill=GREY),
    ]
    return card(880, 218, "One corrupt image of four: a stock handler and this project", parts)


def draw_modes() -> str:
    """Draw classic and adaptive batching of the same six requests, of which 2 and 5 are long."""

    def ticks(y: float) -> list[str]:
        arrivals = [
            part
            for number, x in enumerate((0, 16, 32, 48, 64, 80), start=1)
            for part in (arrow(60 + x, y - 16, 60 + x, y), text(60 + x, y - 19, str(number), size=10, fill=GREY))
        ]
        return [
            *arrivals,
            text(152, y - 10, "six requests arrive; 2 and 5 are long", size=11, anchor="start", fill=GREY),
        ]

    parts = [text(20, 26, "Classic: TorchServe forms batches in the order of arrival", anchor="start"), *ticks(62)]
    parts += [bar(60, 64, 84, "before", GREY), bar(148, 64, 190, "1, 2, 3", BLUE), bar(342, 64, 190, "4, 5, 6", BLUE)]
    parts += [
        text(20, 130, "Adaptive: the worker chooses; similar requests run together, urgent ones first", anchor="start")
    ]
    parts += ticks(166)
    parts += [
        bar(60, 168, 84, "before", GREY),
        bar(148, 168, 100, "1, 3, 4, 6", BLUE),
        bar(252, 168, 140, "2, 5", BLUE),
    ]
    parts += [text(60, 216, "time →", size=11, anchor="start", fill=GREY)]
    return card(620, 230, "Classic and adaptive batching of the same arrivals", parts)


def draw_threads() -> str:
    """Draw the threads of an adaptive worker around the core."""

    def label(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return text(x, y, words, size=11, anchor=anchor, fill=GREY)

    parts = [
        box((16, 120), (80, 60), ["clients"]),
        *(arrow(96, 140, 130, 140), arrow(130, 160, 96, 160)),
        box((130, 120), (164, 60), ["TorchServe", "one exchange per batch"], BLUE),
        *(arrow(294, 140, 392, 140), arrow(392, 160, 294, 160)),
        *(label(328, 132, "requests"), label(328, 176, "responses")),
        f'<rect x="366" y="20" width="644" height="270" rx="8" fill="none" stroke="{GREY}" stroke-dasharray="4 3"/>',
        label(380, 40, "worker", "start"),
        box((392, 105), (160, 90), ["exchange thread", "receive, unpack, submit", "split, pack, send"], ORANGE),
        box((640, 40), (160, 54), ["decode threads", "decode, prepare, cost"], ORANGE),
        box((640, 126), (160, 54), ["core", "scheduler, one lock"], GREEN),
        box((640, 222), (160, 54), ["watching thread", "expired, stuck"], ORANGE),
        *(box((882, y), (116, 54), ["engine thread", f"stream {number}"], ORANGE) for number, y in ((1, 84), (2, 178))),
        *(arrow(552, 118, 638, 68), label(590, 84, "payloads", "end")),
        *(arrow(720, 94, 720, 126), label(728, 114, "decoded", "start")),
        *(arrow(552, 142, 640, 142), label(596, 136, "submit, help")),
        *(arrow(640, 166, 552, 166), label(596, 182, "complete")),
        *(arrow(720, 222, 720, 180), label(728, 206, "expire", "start")),
        *(arrow(800, 140, 882, 106), arrow(882, 124, 800, 152), arrow(800, 160, 882, 194), arrow(882, 212, 800, 172)),
        *(label(836, 106, "micro-batch"), label(940, 248, "outputs, seconds")),
    ]
    return card(1030, 306, "An adaptive worker: the exchange thread, decode and engine threads around the core", parts)


def draw_states() -> str:
    """Draw the states of a request in adaptive mode."""
    names = ("admission", "decoding", "queued", "running", "answered")
    parts = [box((20 + 180 * i, 20), (110, 40), [name], GREEN if i == 4 else BLUE) for i, name in enumerate(names)]
    parts += [arrow(130 + 180 * i, 40, 200 + 180 * i, 40) for i in range(4)]
    ends = (
        ("rejected: 503 or 429", "queue full, or response late"),
        ("failed: its own error", "413 for the whole request,", "504 if its time was up"),
        ("expired: 504", "with timeout_action: reject"),
        ("failed: 500 or 507", "after halving the micro-batch"),
    )
    for i, (name, *lines) in enumerate(ends):
        parts += [arrow(75 + 180 * i, 60, 75 + 180 * i, 100), box((0 + 180 * i + 2, 100), (168, 62), [name, *lines])]
    parts += [text(435, 186, "timeout_action: delay: it waits behind all punctual items", size=11, fill=GREY)]
    return card(870, 200, "The states of a request: admission, decoding, queued, running, answered", parts)


def quotient(row: Mapping[str, Any]) -> float:
    """Return our median over the baseline's."""
    return float(row["ours"]["median"] / row["theirs"]["median"])


def draw_results() -> str:
    """Draw the titled rows of results.json: a bar for each processor, the quotient of both medians."""
    tables = json.loads((IMAGES.parent / "results.json").read_bytes())
    tables = [table for table in tables if table["part"] == "bench"]
    titles = list(dict.fromkeys(row["title"] for table in tables for row in table["rows"] if "title" in row))
    most = max(quotient(row) for table in tables for row in table["rows"] if "title" in row)
    left, unit, parts = 320, 400 / most, []
    for index, (table, fill) in enumerate(zip(tables, (BLUE, ORANGE, GREEN), strict=True)):
        parts += [f'<rect x="{left + 180 * index}" y="12" width="12" height="12" fill="{fill}"/>']
        parts += [text(left + 18 + 180 * index, 22, table["name"], size=12, anchor="start")]
        for row in (row for row in table["rows"] if "title" in row):
            y, width = 36 + HEIGHT * titles.index(row["title"]) + 19 * index, quotient(row) * unit
            medians = f"{row['ours']['median']:.3g} : {row['theirs']['median']:.3g}"
            words = f"{quotient(row):.3g}x  ({medians} {row['measured'].rpartition(', ')[2]})"
            parts += [f'<rect x="{left}" y="{y}" width="{width:.1f}" height="17" fill="{fill}"/>']
            parts += [text(left + width + 8, y + 13, words, size=12, anchor="start")]
    for number, title in enumerate(titles):
        for line, words in enumerate(title.splitlines()):
            fill, y = GREY if line else INK, 60 + HEIGHT * number + 16 * line
            parts.append(text(left - 10, y, words, size=13 - line, anchor="end", fill=fill))
    end = 38 + HEIGHT * len(titles)
    parts.append(f'<path d="M{left + unit:.1f},32 V{end}" stroke="{INK}" stroke-dasharray="4 3"/>')
    parts.append(
        text(left, end + 14, "times the rate of the baseline (dashed: equal)", size=11, anchor="start", fill=GREY)
    )
    return card(980, end + 24, "Throughput of this project over each baseline, with the figures of both", parts)


def place(scale: Callable[[float], float], most: float, top: float, height: float, value: float) -> float:
    return top + height * (1 - scale(value) / scale(most))


def draw_soak() -> str:
    """Draw soak.json: each minute's p99 and most memory of each model, and the kills of their workers."""
    found = json.loads((IMAGES.parent / "soak.json").read_bytes())
    names = list(found["memory_mb"])
    last = max(minute for points in found["memory_mb"].values() for minute, _ in points) + 1
    left, width, height, parts = 60, 660, 150, []
    memory_ends = range(0, math.ceil(max(value for points in found["memory_mb"].values() for _, value in points)), 250)
    for top, key, title, scale, ends in (
        (30, "p99_ms", "p99 of each minute, ms", math.log10, (1, 10, 100, 1000, 10000, 100000)),
        (232, "memory_mb", "memory of each process, MB", float, (*memory_ends, memory_ends[-1] + 250)),
    ):
        parts += [text(left, top - 8, title, size=12, anchor="start")]
        parts += [f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="{PALE}"/>']
        y_of = partial(place, scale, ends[-1], top, height)
        parts += [text(left - 6, y_of(end) + 4, f"{end}", size=11, anchor="end", fill=GREY) for end in ends]
        for name, points in found[key].items():
            line = " ".join(f"{left + width * (minute + 0.5) / last:.1f},{y_of(value):.1f}" for minute, value in points)
            style = f'stroke="{COLOURS[names.index(name)]}" stroke-width="1.6"'
            parts.append(f'<polyline points="{line}" fill="none" {style}/>')
        for minute in found["kills_min"]:
            x = left + width * minute / last
            parts.append(f'<path d="M{x:.1f},{top + height} v6" stroke="{INK}"/>')
        for minute in range(0, last + 1, 10):
            x = left + width * minute / last
            parts.append(text(x, top + height + 20, f"{minute} min", size=11, fill=GREY))
    for number, name in enumerate(names):
        y = 40 + 22 * number
        parts.append(f'<rect x="{left + width + 14}" y="{y - 9}" width="12" height="12" fill="{COLOURS[number]}"/>')
        parts.append(text(left + width + 32, y + 2, name, size=12, anchor="start"))
    parts.append(text(left + width + 14, 40 + 22 * len(names), "ticks: a worker is killed", size=11, anchor="start"))
    return card(970, 412, "An hour of mixed load with killed workers: p99 and memory of each minute", parts)


DIAGRAMS = {
    "request-path": draw_request_path,
    "stock": draw_stock,
    "modes": draw_modes,
    "threads": draw_threads,
    "states": draw_states,
    "results": draw_results,
    "soak": draw_soak,
}


def read(name: str) -> str:
    """Return a diagram's file, or nothing if there is none."""
    path = IMAGES / f"{name}.svg"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main() -> int:
    """Write each diagram; with --check, return 1 if a file is stale."""
    stale = [name for name, draw in DIAGRAMS.items() if read(name) != draw()]
    if "--check" in sys.argv[1:]:
        sys.stderr.write("".join(f"diagrams: stale: {name}.svg; run `make docs`\n" for name in stale))
        return int(bool(stale))
    for name, draw in DIAGRAMS.items():
        (IMAGES / f"{name}.svg").write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
