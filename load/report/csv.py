"""Writes stored runs as CSV with perf_analyzer's columns, so that programs that read its files read these.

Latencies are in microseconds, as there. `Client Send` and `Client Recv` are empty: on kept connections to a server that
reads as it is sent to, they are part of the network's share. `Label`, `Avg latency` and `Valid` follow its own columns.
"""

import csv
import io
from collections.abc import Sequence

from load.runs.run_file import Run, StepResult

LOADS = {"concurrency": "Concurrency", "rate": "Request Rate"}
# perf_analyzer's name for each of TorchServe's stages.
STAGES = {
    "Server Queue": ("queue",),
    "Server Compute Input": ("decode", "wait"),
    "Server Compute Infer": ("forward",),
    "Server Compute Output": ("encode",),
}
PERCENTILES = ("p50", "p90", "p95", "p99")


def render(runs: Sequence[Run]) -> str:
    """Return the file's text: a header, and a row for each step."""
    rows = [_row(run, step) for run in runs for step in run.steps]
    kinds = [name for name in LOADS.values() if any(name in row for row in rows)]
    columns = [
        *kinds,
        "Inferences/Second",
        "Client Send",
        "Network+Server Send/Recv",
        *STAGES,
        "Client Recv",
        *(f"{name} latency" for name in PERCENTILES),
        "Avg latency",
        "Label",
        "Valid",
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(run: Run, step: StepResult) -> dict[str, str]:
    stages_ms = {
        name: sum(step.server_ms[part] for part in parts)
        for name, parts in STAGES.items()
        if all(part in step.server_ms for part in parts)
    }
    row = {
        LOADS[step.kind]: f"{step.value:g}",
        "Inferences/Second": f"{step.throughput_per_s:.4f}",
        **{name: _us(value) for name, value in stages_ms.items()},
        **{f"{name} latency": _us(step.latency_ms[name]) for name in PERCENTILES if step.latency_ms},
        "Label": run.label,
        "Valid": "yes" if step.is_valid else "no",
    }
    if step.latency_ms:
        row["Avg latency"] = _us(step.latency_ms["mean"])
        row["Network+Server Send/Recv"] = _us(max(0.0, step.latency_ms["mean"] - sum(stages_ms.values())))
    return row


def _us(value_ms: float) -> str:
    return f"{value_ms * 1e3:.0f}"
