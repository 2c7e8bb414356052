"""Draws the rates of a benchmark as bars, each over the peer's.

`python -m load.bench.chart build/bench.json build/bench.svg` reads the JSON that `make bench` writes.
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

# Okabe and Ito's blue, on a white background that a dark page keeps.
COLOUR = "#0072B2"
# Inches, of 100 pixels: the width, the height of a bar, and of what surrounds the bars.
WIDTH, BAR, MARGIN = 9.0, 0.32, 1.1


def draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    """Draw the rows that have a rate, a unit that ends in /s; a bar is the median ratio, ours over theirs."""
    rates = [row for row in rows if row["measured"].endswith("/s") and row["ours"] and row["ratio"]["median"]]
    if not rates:
        raise ValueError("no row measures a rate, with a unit that ends in /s")
    figure = Figure(figsize=(WIDTH, BAR * len(rates) + MARGIN), layout="constrained", facecolor="white")
    axes, places = figure.subplots(), range(len(rates))
    ratios = [row["ratio"]["median"] for row in rates]
    words, labels = [], []
    for row in rates:
        what, _, unit = row["measured"].rpartition(", ")
        ratio, ours, theirs = (f"{row[name]['median']:.3g}" for name in ("ratio", "ours", "theirs"))
        words.append(f"{ratio}x  ({ours} : {theirs} {unit})")
        labels.append(f"{what}\nagainst {row['against']}")
    axes.bar_label(axes.barh(places, ratios, height=0.62, color=COLOUR), words, padding=4, fontsize=9)
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=1.2, linestyle="--")
    axes.set_xlim(0, 1.45 * max(ratios))
    axes.set_xlabel("times the rate of the peer (dashed line: equal)", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(fill(title, 110), fontsize=10, x=0.01, ha="left")
    return figure


def main(arguments: list[str]) -> int:
    """Draw a file; 1 with one line if it cannot be read or drawn."""
    parser = argparse.ArgumentParser(prog="python -m load.bench.chart", description="Draw a benchmark's rates as bars.")
    parser.add_argument("table", type=Path, help="JSON of `make bench`, such as build/bench.json")
    parser.add_argument("out", type=Path, help="SVG to write")
    options = parser.parse_args(arguments)
    try:
        table = orjson.loads(options.table.read_bytes())
        # Text stays text, and the same table makes the same file.
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bench", "font.family": "sans-serif"}):
            draw(table["rows"], table["machine"]).savefig(options.out, format="svg", dpi=100, metadata={"Date": None})
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"chart: {options.table}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
