"""Archives of stock TorchServe are unpacked within bounds, and nothing in them is run."""

import io
import json
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deploy.archives import old_archives
from deploy.archives.old_archives import unpack
from deploy.migrate.weights import read_weights
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig
from tests.stock_archives import resnet18, scripted

MANIFEST = json.dumps({"model": {"modelName": "m", "handler": "h.py", "configFile": "model-config.yaml"}})
FILES = {"MAR-INF/MANIFEST.json": MANIFEST, "model-config.yaml": "batchSize: 4", "h.py": "1/0", "data/words.txt": "a"}


def zipped(path: Path, files: dict[str, str], **attributes: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, text in files.items():
            info = zipfile.ZipInfo(name)
            for attribute, value in {"compress_type": zipfile.ZIP_DEFLATED, **attributes}.items():
                setattr(info, attribute, value)
            target.writestr(info, text)
    return path


def tarred(path: Path, files: dict[str, str], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w:gz") as target:
        for name, text in files.items():
            info = tarfile.TarInfo(f"m/{name}")
            info.size, info.type, info.linkname = len(text), kind, "/etc/passwd"
            target.addfile(info, io.BytesIO(text.encode()))
    return path


def foldered(path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize(("make", "name"), [(zipped, "m.mar"), (tarred, "m.tar.gz"), (foldered, "m")])
def test_archives_of_each_format_are_unpacked_and_not_run(
    tmp_path: Path, make: Callable[[Path, dict[str, str]], Path], name: str
) -> None:
    (tmp_path / "out").mkdir()
    found = unpack(make(tmp_path / name, FILES), tmp_path / "out")
    assert found.files() == ["data/words.txt", "h.py", "model-config.yaml"]
    assert (found.manifest["handler"], found.config) == ("h.py", {"batchSize": 4})
    assert found.read_text("h.py") == "1/0"


# 9 ** 8 keys, in 495 bytes.
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: zipped(path, FILES | {"../../out": "x"}), "leaves the folder"),
        (lambda path: zipped(path, FILES | {"/etc/cron.d/x": "x"}), "leaves the folder"),
        (lambda path: zipped(path, FILES | {"a\\..\\b": "x"}), "leaves the folder"),
        (lambda path: zipped(path, FILES, external_attr=(stat.S_IFLNK | 0o777) << 16), "is a link"),
        (lambda path: tarred(path, FILES, tarfile.SYMTYPE), "is a link or a device"),
        (lambda path: tarred(path, FILES, tarfile.CHRTYPE), "is a link or a device"),
        (lambda path: zipped(path, FILES | {"zeros": "0" * 3_000_000}), "'zeros' grows from .* to 3000000 bytes"),
        (lambda path: zipped(path, FILES | {f"{n}": "0" * 2**20 for n in range(9)}), "archive grows from .* bytes"),
        (lambda path: tarred(path, FILES | {f"{n}": "0" * 2**20 for n in range(9)}), "archive grows from .* bytes"),
        (lambda path: tarred(path, {"0" * 2_000_000: ""}), "has a header of 2000.* bytes; at most 1048576 are read"),
        (
            lambda path: zipped(path, FILES, compress_type=zipfile.ZIP_LZMA),
            "has compression 14; expected DEFLATE or none",
        ),
        (lambda path: path.write_bytes(lzma.compress(tarred(path, FILES).read_bytes())) and path, "not a gzip file"),
        (lambda path: zipped(path, FILES | {"model-config.yaml": MERGES}), "model-config.yaml: more than 50 levels or"),
        (lambda path: zipped(path, FILES | {"model-config.yaml": "a: {<<: {b: 1}}"}), r"a merge \(<<\): write its"),
        (lambda path: zipped(path, FILES | {"model-config.yaml": "a: &a [*a]"}), "or an alias of itself"),
        (lambda path: zipped(path, FILES | {"model-config.yaml": "maxWorkers: 1:30"}), "a number in base 60 or of"),
        (lambda path: zipped(path, FILES | {"model-config.yaml": "a: 0x" + "f" * 9999}), "or of over 40 digits: write"),
        (lambda path: zipped(path, FILES | {"model-config.yaml": "a: 2001-99-99"}), "ValueError: month must be in"),
        (lambda path: zipped(path, FILES | {f"{n}": "" for n in range(30)}), "at most 20 files"),
        (lambda path: zipped(path, {"h.py": ""}), "no MAR-INF/MANIFEST.json"),
        (lambda path: zipped(path, FILES | {"MAR-INF/MANIFEST.json": "[" * 100_000}), "MANIFEST.json: "),
        (lambda path: zipped(path, FILES | {"MAR-INF/MANIFEST.json": "{}"}), "expected model.handler"),
        (lambda path: path.write_bytes(b"PK\x03\x04 no archive") and path, "not a valid archive"),
    ],
)
def test_archive_that_is_hostile_or_damaged_is_one_line_and_nothing_lies_outside(
    tmp_path: Path, make: Callable[[Path], Path], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_archives, "MOST_FILES", 20)
    (tmp_path / "in" / "out").mkdir(parents=True)
    path = make(tmp_path / "m.mar")
    with pytest.raises(InvalidConfig, match=reason) as error:
        unpack(path, tmp_path / "in" / "out")
    assert "\n" not in str(error.value)
    assert {each.name for each in tmp_path.iterdir()} == {"in", "m.mar"}


def test_member_with_more_bytes_than_are_free_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3))
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidConfig, match="more than are free on the disk"):
        unpack(zipped(tmp_path / "m.mar", FILES), tmp_path / "out")


def read(path: Path) -> dict[str, torch.Tensor]:
    return read_weights(ModelEntry("m", "", "", path.parent), path)


def test_tensors_of_a_script_are_its_state_dict(tmp_path: Path) -> None:
    network = resnet18()
    found = read(scripted(network, tmp_path / "m.pt"))
    own = network.state_dict()
    assert found.keys() == own.keys() and all(torch.equal(found[name], own[name]) for name in own)


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_pickle_of_a_script_with_other_objects_is_refused_and_they_are_not_made(tmp_path: Path) -> None:
    torch.save({"a.b": torch.zeros(1), "evil": Evil(tmp_path / "made")}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as source, zipfile.ZipFile(tmp_path / "m.pt", "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
        target.writestr("plain/code/m.py", "")
    with pytest.raises(InvalidConfig, match=r"cannot be read without running it: it contains posix\.mkdir"):
        read(tmp_path / "m.pt")
    assert not (tmp_path / "made").exists()
