"""Draws the rates of a benchmark as bars, relative to a baseline's.

`python -m load.bench.chart build/bench.json build/bench.svg` reads the JSON that `make bench` writes, or a list of such
tables, one for each processor.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import orjson
from matplotlib.figure import Figure

from torchserve_client.arguments import Parser

# Okabe and Ito's blue and orange, one for each processor; the background is white on dark pages, too.
COLOURS = ("#0072B2", "#E69F00")
# Inches, of 100 pixels: width of the picture, height of a bar, height around the bars.
WIDTH = 9.0
BAR = 0.3
MARGIN = 1.1


def choose(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows to draw: those with a title, or else each rate, whose unit ends in /s."""
    rates = [row for row in table["rows"] if row["measured"].endswith("/s") and row["ours"] and row["ratio"]["median"]]
    return [row for row in rates if "title" in row] or rates


def draw(tables: Sequence[dict[str, Any]]) -> Figure:
    """Draw a group of bars for each row, one for each table; a bar is the quotient of both medians."""
    columns = [choose(table) for table in tables]
    if not (count := len(columns[0])):
        raise ValueError("no row has a rate, a unit that ends in /s")
    height = BAR * count * (len(tables) + 0.6) + MARGIN
    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    axes, longest = figure.subplots(), 0.0
    for index, (table, rows) in enumerate(zip(tables, columns, strict=True)):
        figures = [(row["ours"]["median"], row["theirs"]["median"]) for row in rows]
        ratios = [ours / theirs for ours, theirs in figures]
        words = [
            f"{ratio:.3g}x  ({ours:.3g} : {theirs:.3g} {row['measured'].rpartition(', ')[2]})"
            for ratio, (ours, theirs), row in zip(ratios, figures, rows, strict=True)
        ]
        name, places = table.get("name", table["machine"]), [at + index / (len(tables) + 0.6) for at in range(count)]
        bars = axes.barh(places, ratios, height=0.92 / (len(tables) + 0.6), color=COLOURS[index], label=name)
        axes.bar_label(bars, words, padding=4, fontsize=9)
        longest = max(longest, *ratios)
    labels = [
        row.get("title", f"{row['measured'].rpartition(', ')[0]}\nagainst {row['against']}") for row in columns[0]
    ]
    axes.set_yticks([at + (len(tables) - 1) / 2 / (len(tables) + 0.6) for at in range(count)], labels, fontsize=9)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=1.2, linestyle="--")
    axes.set_xlim(0, 1.45 * longest)
    axes.set_xlabel("times the rate of the baseline (dashed line: equal)", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper left", fontsize=9, frameon=False, ncols=len(tables))
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
    parser.add_argument("table", type=Path, help="JSON that `make bench` has written, or a list of it")
    parser.add_argument("out", type=Path, help="SVG to write")
    options = parser.parse_args(arguments)
    try:
        loaded = orjson.loads(options.table.read_bytes())
        tables = loaded if isinstance(loaded, list) else [loaded]
        # Text remains text, and equal tables make equal files.
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bench", "font.family": "sans-serif"}):
            draw(tables).savefig(options.out, format="svg", dpi=100, metadata={"Date": None})
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"chart: {options.table}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
