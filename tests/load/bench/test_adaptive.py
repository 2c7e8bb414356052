from pathlib import Path
from statistics import median

import pytest
import yaml

from load.bench import adaptive
from load.bench.adaptive import EMBEDDING, Setting

SETTING = Setting(target_ms=100.0, batch_size=16, offline_per_s=400.0)
MEASURED = {
    "rate": {"classic": [260.0, 250.0], "adaptive": [360.0, 340.0]},
    "one": {"classic": [8.0, 8.2], "adaptive": [8.0, 8.0]},
    "saturated": {"classic": [380.0, 400.0], "adaptive": [480.0, 500.0]},
    "overload": {"classic": [0.0, 10.0], "adaptive": [380.0, 352.0]},
}


def test_adaptive_table_compares_each_measure_with_what_it_is_held_to() -> None:
    rows = adaptive.table(EMBEDDING, SETTING, MEASURED)
    compared = [round(median(row.compared), 3) for row in rows]
    assert compared == [1.372, 0.875, 0.915, 0.988, 1.257]
    assert [row.cells()[-1] for row in rows] == ["ok"] * 5
    assert rows[-1].what.startswith("24 clients")


def test_adaptive_table_says_what_falls_short() -> None:
    worse = {
        **MEASURED,
        "rate": {"classic": [260.0], "adaptive": [280.0]},
        "overload": {"classic": [0.0], "adaptive": [1.0]},
    }
    rows = adaptive.table(EMBEDDING, SETTING, worse)
    assert [row.cells()[-1] for row in rows] == ["short", "short", "short", "ok", "ok"]


def test_adaptive_archive_is_told_the_target_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "model-config.yaml"
    path.write_text("batchSize: 64\nhandler:\n  scheduling: {mode: adaptive, max_latency_ms: 500}\n")
    adaptive.set_target(tmp_path, 80.04)
    assert yaml.safe_load(path.read_text()) == {
        "batchSize": 64,
        "handler": {"scheduling": {"mode": "adaptive", "max_latency_ms": pytest.approx(80.0)}},
    }
