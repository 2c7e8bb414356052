import json
import zipfile
from pathlib import Path

import pytest

from tests.tables import table
from torchserve_client import InvalidPayload, archives

MANIFEST = {"model": {"modelName": "m", "modelVersion": "1.0", "configFile": "model-config.yaml", "handler": "h.py"}}
CONFIG = "batchSize: 8\ncontinuousBatching: true\n"
WEIGHTS = bytes(range(256)) * 5000


def mar(folder: Path, compression: int = zipfile.ZIP_STORED) -> Path:
    path = folder / "m.mar"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("handlers/", b"")
        archive.writestr("handlers/h.py", "class Handler: ...")
        archive.writestr("model.bin", WEIGHTS)
        archive.writestr("model-config.yaml", CONFIG)
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(MANIFEST))
    return path


def unpacked(folder: Path) -> Path:
    with zipfile.ZipFile(mar(folder)) as archive:
        archive.extractall(folder / "m")
    return folder / "m"


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_copy_differs_in_its_version_alone(tmp_path: Path, compression: int) -> None:
    original = mar(tmp_path, compression)
    before = original.read_bytes()
    copy = archives.copy_as_version(original, "1.0-r2")
    assert (copy, archives.describe(copy).version) == (tmp_path / "m@1.0-r2.mar", "1.0-r2")
    assert original.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"m.mar", "m@1.0-r2.mar"}
    with zipfile.ZipFile(copy) as archive, zipfile.ZipFile(original) as first:
        assert archive.testzip() is None
        assert (archive.namelist(), archive.read("model.bin")) == (first.namelist(), WEIGHTS)
        assert archive.getinfo("model.bin").compress_type == compression
        manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))
    assert manifest == {"model": {**MANIFEST["model"], "modelVersion": "1.0-r2"}}


def test_copy_of_a_folder_lacks_the_compiled_python_that_a_starting_worker_writes_and_renames(tmp_path: Path) -> None:
    folder = unpacked(tmp_path)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "h.cpython-311.pyc.1").symlink_to("gone")
    copy = archives.copy_as_version(folder, "1.0-r2")
    assert archives.identify(copy) == archives.identify(folder)
    assert archives.describe(copy).version == "1.0-r2" and not (copy / "__pycache__").exists()
    (folder / "weights.bin").symlink_to("gone")
    with pytest.raises(OSError, match=r"^\[Errno 2\] No such file or directory: '\S*/weights.bin'$"):
        archives.copy_as_version(folder, "1.0-r3")


def test_copy_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    original = mar(tmp_path)
    content = original.read_bytes()
    original.write_bytes(content.replace(WEIGHTS[:300], b"x" * 300, 1))
    with pytest.raises(zipfile.BadZipFile):
        archives.copy_as_version(original, "1.0-r2")
    assert [path.name for path in tmp_path.iterdir()] == ["m.mar"]


@table(
    ("1.0", ["1.0"], "1.0-r2"),
    ("1.0-r2", ["1.0", "1.0-r2", "1.0-r7"], "1.0-r8"),
    ("1.0-untrained", ["1.0-untrained"], "1.0-untrained-r2"),
)
def test_next_version_is_free(version: str, taken: list[str], following: str) -> None:
    assert archives.next_version(version, taken) == following
    assert archives.original_version(following) == archives.original_version(version)


def test_names_that_are_served_everywhere_are_valid_and_others_are_refused_in_one_line() -> None:
    for name in ("a", "n" * 128, "größe", "हिन्दी", "모델", "x.y_z-1+2:3@4~5", ".a"):
        archives.check_name(name)
    for name in ("", "n" * 129, ".", "..", "a..b", "\udce9", *(f"a{other}b" for other in " /\\{}%?#\n\0;,=&")):
        with pytest.raises(InvalidPayload, match=r"^'.*' is not a valid name: use 1 to 128 letters, digits and .*$"):
            archives.check_name(name)
