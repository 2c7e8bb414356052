"""Table, CSV and page of a run whose numbers are known."""

import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from load.report import csv as csv_report
from load.report import figures, page, table
from load.report.terms import TERMS
from load.runs.run_file import Run
from tests.load.stored_runs import invalid, run


def shown(*runs: Run, has_legend: bool = False) -> str:
    text = io.StringIO()
    table.show(runs, Console(file=text), has_legend=has_legend)
    return text.getvalue()


def test_table_has_a_row_for_each_step_and_its_numbers() -> None:
    header, clients, rate = shown(run()).splitlines()
    assert header.split()[:3] == ["load", "1/s", "goodput"]
    assert clients.split()[:5] == ["8", "clients", "50.0", "25.0", "49.80"]
    assert "200: 500, 503: 1, ServerDisconnectedError: 1" in clients
    assert clients.split()[-7:] == ["4.0", "5.00", "2.00", "1.00", "40.0", "0.50", "yes"]
    assert rate.startswith("60/s poisson")


def test_table_of_an_invalid_step_says_why() -> None:
    made = run()
    text = shown(replace(made, steps=[invalid(step) for step in made.steps]))
    assert text.count(" NO\n") == 2
    assert "NOT VALID: ours, 8 clients: the generator <fell> behind" in text


def test_table_of_two_runs_names_them_and_a_legend_defines_every_term() -> None:
    text = shown(run("ours"), run("stock"), has_legend=True)
    assert [line.split()[0] for line in text.splitlines()[1:5]] == ["ours", "ours", "stock", "stock"]
    assert all(any(line.startswith(term) for line in text.splitlines()) for term in TERMS)


def test_csv_has_perf_analyzers_columns_in_microseconds() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_report.render([replace(run(), steps=run().steps[:1])]))))
    assert list(rows[0])[:13] == [
        "Concurrency",
        "Inferences/Second",
        "Client Send",
        "Network+Server Send/Recv",
        "Server Queue",
        "Server Compute Input",
        "Server Compute Infer",
        "Server Compute Output",
        "Client Recv",
        "p50 latency",
        "p90 latency",
        "p95 latency",
        "p99 latency",
    ]
    row = rows[0]
    assert (row["Concurrency"], row["Inferences/Second"], row["Valid"]) == ("8", "50.0000", "yes")
    stages = ("Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output")
    assert [row[stage] for stage in stages] == ["5000", "3000", "40000", "500"]
    # 50.5 ms in the mean, less 48.5 of them in the server.
    assert abs(int(row["Network+Server Send/Recv"]) - 2000) < 60
    assert abs(int(row["p99 latency"]) - 99_000) < 100


def test_csv_of_rates_has_perf_analyzers_column_for_them() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_report.render([replace(run(), steps=run().steps[1:])]))))
    assert [row["Request Rate"] for row in rows] == ["60"]
    assert "Concurrency" not in rows[0]


class Page(HTMLParser):
    """What a browser would load, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.headings: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)


def test_page_of_two_runs_is_whole_and_needs_no_network() -> None:
    text = page.render([run("ours", 50, 60, 55), run("<stock>", 25, 30, 27.5)])
    parsed = Page(text)
    assert parsed.open == []
    assert parsed.loaded == []
    assert parsed.headings == [
        "ours and <stock>",
        "Throughput against latency",
        "<stock> against ours",
        "Latency distribution",
        "Batch sizes",
        "Time in the server",
        "Every number",
        "What they mean",
    ]
    assert "<stock>" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert text.count("Plotly.newPlot(") == 4 + text.split("</head>")[0].count("Plotly.newPlot(")
    # Half the throughput, in every repeat.
    assert "<td>0.500</td><td>0.500 .. 0.500</td>" in text


def test_page_of_a_run_without_any_answer_is_drawn_and_says_so() -> None:
    made = run()
    empty = replace(invalid(made.steps[0]), latency_ms={}, requests_by_batch_size={}, forward_passes={}, server_ms={})
    text = page.render([replace(made, steps=[empty])])
    assert "NOT VALID: ours, 8 clients: the generator &lt;fell&gt; behind" in text


def test_figures_draw_what_was_measured() -> None:
    runs = [run("ours"), run("stock")]
    curves = json.loads(figures.throughput_latency(runs).to_json())["data"]
    assert [curve["name"] for curve in curves[:4]] == [
        "ours (concurrency), p99",
        "ours (concurrency), p50",
        "ours (rate), p99",
        "ours (rate), p50",
    ]
    assert [curve["text"] for curve in curves[:3:2]] == [["8 clients"], ["60/s poisson"]]
    tails = json.loads(figures.latency_distribution(runs).to_json())
    assert tails["layout"]["xaxis"]["type"] == "log"
    assert tails["layout"]["xaxis"]["ticktext"][:3] == ["50 %", "90 %", "99 %"]
    bars = json.loads(figures.batch_sizes(runs).to_json())["data"]
    assert [(bar["x"], bar["y"]) for bar in bars] == [(["4"], [100.0])] * 4
    stages = json.loads(figures.server_time(runs[:1]).to_json())["data"]
    assert [(bar["name"], bar["x"][0]) for bar in stages] == [
        ("queue", 5),
        ("decode", 2),
        ("wait", 1),
        ("forward", 40),
        ("encode", 0.5),
    ]


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_table_on_a_terminal_of_any_width_shows_every_number_whole(width: int) -> None:
    text = io.StringIO()
    table.show([run()], Console(file=text, force_terminal=True, width=width, color_system=None))
    lines = text.getvalue().splitlines()
    assert "…" not in text.getvalue()
    assert all(len(line.rstrip()) <= width for line in lines)
    # As many tables as are needed, and each says which step a row is of.
    assert [line.split()[0] for line in lines[::3]] == ["load"] * (len(lines) // 3)
    names = [cell for line in lines[::3] for cell in re.split(r"\s{2,}", line.strip())]
    assert {"p99 ms", "status", "forward", "valid"} <= set(names)
