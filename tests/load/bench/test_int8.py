"""The part on int8: which row is held against what, what is held out, and how two sets of answers are compared."""

import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from load.bench import int8
from load.bench.int8 import Answers
from load.bench.rounds import Series
from load.bench.table import spread
from tests import held_out
from tests.nearness import Nearness, of_classes, of_vectors


def rates(gains: Mapping[str, float], stock: float = 1.0) -> Series:
    """One round in which bf16 does 10 a second everywhere, and int8 so many times that, or twice."""
    whats = [
        *(int8.served(clients) for clients in (1, 16)),
        *(int8.in_process(name, clients) for name in ("resnet-152", *int8.IMAGES) for clients in (1, 16)),
        int8.LISTS,
        int8.in_process("sentence-embedding", 32),
    ]
    made = {"stock": [stock]}
    for what in whats:
        made[f"{what} bf16"] = [10.0]
        made[f"{what} int8"] = [10.0 * gains.get(what, 2.0)]
    return made


NEAR = [
    Answers("mobilenet-v2, 120 crops", Nearness(0.98, 0.1), Nearness(0.95, 0.05)),
    Answers("sentence-embedding, 100 sentences", Nearness(0.995, 0.97), Nearness(0.9999, 0.999)),
]


@pytest.mark.parametrize(
    ("gains", "stock", "expected"),
    [
        # Served twice as fast as bf16, as in process; 20 a second against stock's 1.
        ({}, 1.0, {"served /": ("1.00", "ok"), "/ stock": ("20.00", "ok"), "lists of 64": ("2.00", "ok")}),
        # Served, a quarter of what int8 gains in process is lost.
        ({int8.served(16): 1.5}, 1.0, {"served /": ("0.75", "short"), "/ stock": ("15.00", "ok")}),
        ({}, 2.0, {"served /": ("1.00", "ok"), "/ stock": ("10.00", "short")}),
        ({int8.LISTS: 1.2}, 1.0, {"lists of 64": ("1.20", "short")}),
        # Alone, nothing is asked.
        ({int8.served(1): 0.8}, 1.0, {"1 client,": ("0.80", "")}),
    ],
)
def test_table_of_int8_judges_served_by_in_process_and_stock_and_embeddings(
    gains: Mapping[str, float], stock: float, expected: Mapping[str, tuple[str, str]]
) -> None:
    rows = int8.table(rates(gains, stock), NEAR, "bf16")
    for what, verdict in expected.items():
        (row,) = [row for row in rows if what in row.what]
        assert (spread(row.compared, 2), row.cells()[-1]) == verdict


def test_table_of_int8_has_either_precisions_answers_and_judges_int8s() -> None:
    rows = int8.table(rates({}), NEAR, "bf16")[-4:]
    assert [(row.what.partition(": ")[2], *row.cells()[2:4], row.cells()[-1]) for row in rows] == [
        ("top-1 agreement with fp32", "0.9800", "0.9500", "short"),
        ("largest change", "0.1000", "0.0500", ""),
        ("mean cosine with fp32", "0.9950", "0.9999", "ok"),
        ("least cosine", "0.9700", "0.9990", ""),
    ]


def test_table_of_int8_without_bf16_names_fp32() -> None:
    made = {what.replace("bf16", "fp32"): values for what, values in rates({}).items()}
    assert any(row.what.endswith("images/s: int8 / fp32") for row in int8.table(made, NEAR, "fp32"))


def test_crops_of_either_part_are_squares_of_other_photographs_and_the_same_every_time() -> None:
    assert held_out.TUNING.crops >= 100
    made = held_out.crops(3)
    assert made == held_out.crops.__wrapped__(3)
    assert len({*made.calibration, *made.held_out}) == 6
    for body in (*made.calibration, *made.held_out):
        with Image.open(io.BytesIO(body)) as image:
            assert (image.format, image.width) == ("JPEG", image.height)
    parts = (held_out.CALIBRATION, held_out.HELD_OUT)
    calibration, others = ({(package, name) for package, names in part.items() for name in names} for part in parts)
    assert not calibration & others


def test_sentences_of_either_part_are_others() -> None:
    parts = held_out.sentences()
    assert (len(parts.calibration), len(parts.held_out)) == (100, 100)
    assert not set(parts.calibration) & set(parts.held_out)


def test_parts_are_written_as_a_folder_each(tmp_path: Path) -> None:
    calibration, others = held_out.Parts([b"a", b"b"], [b"c"]).write(tmp_path, ".txt")
    assert [path.read_bytes() for path in sorted(calibration.iterdir())] == [b"a", b"b"]
    assert [path.name for path in others.iterdir()] == ["000.txt"]


def test_nearness_of_classes_is_the_share_of_equal_answers_and_the_largest_change() -> None:
    expected = np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]], np.float32)
    found = np.array([[0.6, 0.3, 0.1], [0.35, 0.4, 0.25]], np.float32)
    assert tuple(of_classes(expected, found)) == pytest.approx((0.5, 0.1))


def test_nearness_of_vectors_is_the_mean_and_the_least_cosine() -> None:
    expected = np.array([[1, 0], [2, 0]], np.float32)
    found = np.array([[3, 0], [1, 1]], np.float32)
    assert tuple(of_vectors(expected, found)) == pytest.approx(((1 + 0.5**0.5) / 2, 0.5**0.5))


@pytest.mark.parametrize(
    ("settings", "window"),
    [({"batchSize": 8}, None), ({"continuousBatching": True, "batchSize": 48}, 48), ({"continuousBatching": True}, 64)],
)
def test_window_of_an_adaptive_archive_is_its_own(
    settings: Mapping[str, object], window: int | None, tmp_path: Path
) -> None:
    (tmp_path / "model-config.yaml").write_text(yaml.safe_dump({**settings, "handler": {}}))
    assert int8.window_of(tmp_path) == window


def test_variant_is_the_archive_in_one_precision_under_its_own_name(tmp_path: Path) -> None:
    folder = tmp_path / "resnet-152"
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "model-config.yaml").write_text("batchSize: 8\nhandler: {arch: resnet152, precision: auto}\n")
    (folder / "MAR-INF" / "MANIFEST.json").write_text('{"model": {"modelName": "resnet-152", "modelVersion": "1.0"}}')
    (folder / "model.bin").write_bytes(b"weights")
    copy = tmp_path / "resnet-152-int8"
    int8.variant(folder, copy, "int8")
    assert yaml.safe_load((copy / "model-config.yaml").read_text()) == {
        "batchSize": 8,
        "handler": {"arch": "resnet152", "precision": "int8"},
    }
    manifest = json.loads((copy / "MAR-INF" / "MANIFEST.json").read_text())
    assert manifest["model"] == {"modelName": "resnet-152-int8", "modelVersion": "1.0"}
    assert (copy / "model.bin").read_bytes() == b"weights"
    assert "precision: auto" in (folder / "model-config.yaml").read_text()
