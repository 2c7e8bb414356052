from pathlib import Path

import yaml

from load.bench import default
from load.bench.default import BEST, TYPED, Results

SAME = {(pair, mode): [100.0, 100.0] for pair in (BEST, TYPED) for mode in default.MODES}
NOBODY = {way: [0.0, 0.0] for way in SAME}


def verdicts(results: Results) -> dict[str, str]:
    return {row[0]: row[-1] for row in default.cells(results)}


def test_default_table_holds_each_quantity_to_its_bound_in_both_ways_of_registering() -> None:
    measured = {
        "1 client, /s": {**SAME, (BEST, "adaptive"): [98.0, 97.0]},
        "4 clients, /s": {**SAME, (TYPED, "adaptive"): [98.0, 95.0]},
        "1 client, p50 in ms": {**SAME, (BEST, "adaptive"): [104.0, 104.0]},
        "4 clients, p50 in ms": {**SAME, (BEST, "adaptive"): [106.0, 106.0], (TYPED, "adaptive"): [107.0, 106.0]},
        "1 client, p99 in ms": {**SAME, (TYPED, "adaptive"): [114.0, 114.0]},
        "4 clients, p99 in ms": {**SAME, (TYPED, "adaptive"): [120.0, 116.0]},
        "1 client, failed": NOBODY,
        "4 clients, failed": {**NOBODY, (BEST, "adaptive"): [1.0, 2.0], (TYPED, "classic"): [5.0, 5.0]},
    }
    assert verdicts(Results(16, measured, {})) == {
        "1 client, /s": "ok",
        "4 clients, /s": "short: typed",
        "1 client, p50 in ms": "ok",
        "4 clients, p50 in ms": "short: best and typed",
        "1 client, p99 in ms": "ok",
        "4 clients, p99 in ms": "short: typed",
        "1 client, failed": "ok",
        "4 clients, failed": "short: best",
    }


def test_default_table_compares_round_by_round_and_counts_failures_as_a_difference() -> None:
    rate = {**SAME, (BEST, "classic"): [50.0, 200.0], (BEST, "adaptive"): [100.0, 200.0]}
    failed = {**NOBODY, (TYPED, "classic"): [7.0, 9.0], (TYPED, "adaptive"): [3.0, 2.0]}
    rows = default.cells(Results(16, {"4 clients, /s": rate, "4 clients, failed": failed}, {}))
    assert rows[0][:4] == ("4 clients, /s", "125.0 (50.0..200.0)", "150.0 (100.0..200.0)", "1.50 (1.00..2.00)")
    assert rows[1][4:8] == ("8 (7..9)", "2 (2..3)", "-6 (-7..-4)", "<= 0")


def test_default_table_says_what_falls_short_of_the_loop_in_process() -> None:
    compared = {clients: {"adaptive": [served], "in-process": [100.0]} for clients, served in ((16, 95.0), (48, 94.0))}
    assert list(verdicts(Results(16, {}, compared)).values()) == ["ok", "short"]


def test_default_archive_in_a_mode_has_the_same_files_and_says_the_mode(tmp_path: Path) -> None:
    built = tmp_path / "built"
    built.mkdir()
    (built / "model.bin").write_bytes(b"weights")
    settings = "batchSize: 8\nmaxWorkers: 4\nhandler:\n  top_k: 5\n  scheduling: {max_latency_ms: 500}\n"
    (built / "model-config.yaml").write_text(settings)
    for mode in default.MODES:
        default.in_mode(built, tmp_path / mode, mode)
    classic, adaptive = (yaml.safe_load((tmp_path / mode / "model-config.yaml").read_text()) for mode in default.MODES)
    assert classic == {
        "batchSize": 8,
        "handler": {"top_k": 5, "scheduling": {"mode": "classic", "max_latency_ms": 500}},
    }
    assert adaptive == {
        "batchSize": 8,
        "continuousBatching": True,
        "minWorkers": 1,
        "maxWorkers": 1,
        "handler": {"top_k": 5, "scheduling": {"mode": "adaptive", "max_latency_ms": None}},
    }
    assert (built / "model-config.yaml").read_text() == settings
    assert (built / "model.bin").samefile(tmp_path / "adaptive" / "model.bin")
