"""Draws the rates of a benchmark as bars, relative to a peer's.

`python -m load.bench.chart build/bench.json build/bench.svg` reads the JSON that `make bench` writes.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import orjson
from matplotlib.figure import Figure

from torchserve_client.arguments import Parser

# Okabe and Ito's blue; the background is white on dark pages, too.
COLOUR = "#0072B2"
# Inches, of 100 pixels: width of the picture, height of a bar, height around the bars.
WIDTH = 9.0
BAR = 0.32
MARGIN = 1.1


def draw(rows: Sequence[dict[str, Any]], title: str) -> Figure:
    """Draw the rows with a rate, a unit that ends in /s; a bar is the median ratio, ours over theirs."""
    rates = [row for row in rows if row["measured"].endswith("/s") and row["ours"] and row["ratio"]["median"]]
    if not rates:
        raise ValueError("no row has a rate, a unit that ends in /s")
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
    """Draw a file and return the exit code; print a failure as one line on stderr."""
    parser = Parser(
        prog="python -m load.bench.chart",
        description="Draw a benchmark's rates as bars.",
        examples=(
            "python -m load.bench.chart build/bench.json build/bench.svg",
            "python -m load.bench.chart docs/results.json docs/images/results.svg",
        ),
    )
    parser.add_argument("table", type=Path, help="JSON that `make bench` has written")
    parser.add_argument("out", type=Path, help="SVG to write")
    options = parser.parse_args(arguments)
    try:
        table = orjson.loads(options.table.read_bytes())
        # Text remains text, and equal tables make equal files.
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bench", "font.family": "sans-serif"}):
            draw(table["rows"], table["machine"]).savefig(options.out, format="svg", dpi=100, metadata={"Date": None})
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"chart: {options.table}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
