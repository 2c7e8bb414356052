"""Draws the rates of a benchmark as bars: each over the peer's.

    python -m load.bench.chart build/bench.json build/bench.svg

reads the JSON that `make bench` writes. docs/results.json has the figures of docs/results.md.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import orjson
from matplotlib.figure import Figure

# Okabe and Ito's blue, and a grey: both are readable on the white background, which a dark page keeps.
OURS, PEER = "#0072B2", "#595959"
# Inches, at 100 pixels each: a chart of 900 pixels, 32 for a bar.
WIDTH, BAR, MARGIN = 9.0, 0.32, 1.1
# Characters of a line of the title.
TITLE = 110
# Units of rates, where more is better.
RATE = "/s"


def draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    """Draw the rows that have a rate of both; a bar is the median ratio, ours over theirs.

    Raises:
        ValueError: no row has one.
    """
    rates = [row for row in rows if row["measured"].endswith(RATE) and row["ours"] and row["ratio"]["median"]]
    if not rates:
        raise ValueError(f"no row measures a rate, with a unit that ends in {RATE}")
    figure = Figure(figsize=(WIDTH, BAR * len(rates) + MARGIN), layout="constrained", facecolor="white")
    axes = figure.subplots()
    ratios = [row["ratio"]["median"] for row in rates]
    bars = axes.barh(range(len(rates)), ratios, height=0.62, color=OURS)
    words = []
    for row, ratio in zip(rates, ratios, strict=True):
        unit = row["measured"].rpartition(", ")[2]
        ours, theirs = (f"{row[name]['median']:.3g}" for name in ("ours", "theirs"))
        words.append(f"{ratio:.3g}x  ({ours} : {theirs} {unit})")
    axes.bar_label(bars, words, padding=4, fontsize=9)
    labels = [f"{row['measured'].rpartition(', ')[0]}\nagainst {row['against']}" for row in rates]
    axes.set_yticks(range(len(rates)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color=PEER, linewidth=1.2, linestyle="--")
    axes.set_xlim(0, 1.45 * max(ratios))
    axes.set_xlabel("times the rate of the peer (dashed line: equal)", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(fill(title, TITLE), fontsize=10, x=0.01, ha="left")
    return figure


def main(arguments: list[str]) -> int:
    """Draw a file; 1 with one line if it cannot be read or drawn."""
    parser = argparse.ArgumentParser(prog="python -m load.bench.chart", description="Draw a benchmark's rates as bars.")
    parser.add_argument("table", type=Path, help="JSON of `make bench`, such as build/bench.json")
    parser.add_argument("out", type=Path, help="image to write; its suffix decides the format: .svg, .png, .pdf")
    options = parser.parse_args(arguments)
    try:
        table = orjson.loads(options.table.read_bytes())
        # Text stays text, and the same table makes the same file.
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bench", "font.family": "sans-serif"}):
            figure = draw(table["rows"], table["machine"])
            figure.savefig(options.out, dpi=100, metadata={"Date": None} if options.out.suffix == ".svg" else None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"chart: {options.table}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
