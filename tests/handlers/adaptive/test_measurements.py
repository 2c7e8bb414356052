"""What warm-up measured is remembered for the same archive on the same machine, and nothing broken is believed."""

from pathlib import Path

import pytest

from handlers.adaptive.measurements import Measurements, folder_of

SEEDS = [(1, 0.03), (8, 0.2)]


def test_measurements_are_there_for_the_next_worker_of_the_same_archive_and_engine(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = Measurements("0123", "openvino cpu bf16", cache)
    assert first.get("whole") == []
    first.put("whole", SEEDS)
    first.put("stream", SEEDS[:1])
    again = Measurements("0123", "openvino cpu bf16", cache)
    assert (again.get("whole"), again.get("stream")) == (SEEDS, SEEDS[:1])
    assert Measurements("0123", "openvino cpu fp32", cache).get("whole") == []
    assert Measurements("4567", "openvino cpu bf16", cache).get("whole") == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"whole": 1}', '{"whole": [[1]]}', '{"whole": [["1", 0.1]]}', '{"whole": [[1, -0.1]]}'),
        *('{"whole": [[0, 0.1]]}', '{"whole": [[1, NaN]]}', '{"whole": [[true, 0.1]]}', "[" * 100_000),
    ],
)
def test_measurements_of_a_broken_file_are_made_anew(tmp_path: Path, text: str) -> None:
    cache = tmp_path / "cache"
    Measurements("0123", "engine", cache).put("whole", SEEDS)
    (written,) = cache.iterdir()
    written.write_text(text)
    broken = Measurements("0123", "engine", cache)
    assert broken.get("whole") == []
    broken.put("whole", SEEDS)
    assert Measurements("0123", "engine", cache).get("whole") == SEEDS


def test_measurements_of_an_archive_without_a_fingerprint_are_forgotten(tmp_path: Path) -> None:
    made = Measurements(None, "engine", tmp_path / "cache")
    made.put("whole", SEEDS)
    assert made.get("whole") == SEEDS
    assert not (tmp_path / "cache").exists()


def test_measurements_with_a_folder_that_cannot_be_made_go_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = Measurements("0123", "engine", tmp_path / "file" / "cache")
    made.put("whole", SEEDS)
    assert made.get("whole") == SEEDS


def test_folder_is_the_environments_or_lies_in_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CACHE_DIR", raising=False)
    assert folder_of(Path("model")) == Path("model/.cache")
    monkeypatch.setenv("CACHE_DIR", "somewhere")
    assert folder_of(Path("model")) == Path("somewhere")
