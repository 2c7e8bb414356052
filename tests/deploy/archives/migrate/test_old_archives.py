"""Archives of stock TorchServe and pickles are read within bounds, and nothing in them is run."""

import io
import json
import lzma
import pickle
import shutil
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deploy.archives import old_archives, pickles
from deploy.archives.migrate.weights import read_weights
from deploy.archives.old_archives import extract
from deploy.archives.sources import WeightsUnavailable
from deploy.archives.state_dicts import read_state
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig
from tests.stock_archives import Running, resnet18, scripted
from tests.tables import table

MODEL = ModelEntry("own", "image_classification", "1", Path())
NESTED = b")" + b"\x85" * 200_000
CALLS = b"ca\nb\nq\x01(" + b"N" * 50_000 + b"tq\x00" + b"h\x01h\x00R0" * 200 + b"N."
MANIFEST = json.dumps({"model": {"modelName": "m", "handler": "h.py", "configFile": "model-config.yaml"}})
FILES = {"MAR-INF/MANIFEST.json": MANIFEST, "model-config.yaml": "batchSize: 4", "h.py": "1/0", "data/words.txt": "a"}
# 9 ** 8 keys, in 495 bytes.
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    return b"\x8a\x09" + value.to_bytes(9, "little")


def group(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def tensor(count: int, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0, kind: str = "Float") -> bytes:
    storage = group(text("storage"), f"ctorch\n{kind}Storage\n".encode(), text("0"), text("cpu"), number(count)) + b"Q"
    shape = group(*map(number, size)), group(*map(number, stride))
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + group(storage, number(offset), *shape, b"\x89", b"N") + b"R"


def weights(*values: bytes) -> bytes:
    named = [text(f"a.{at}") + value for at, value in enumerate(values)]
    return b"\x80\x02}(" + b"".join(named) + b"u."


def saved(path: Path, pickled: bytes, kind: int = zipfile.ZIP_STORED, **more: Any) -> Path:
    """A file as torch.save writes it, of a pickle and one storage of 16 bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {"data.pkl": pickled, "version": "3\n", **more}.items():
            archive.writestr(f"m/{name}" + "/m.py" * (name == "code"), content)
        archive.writestr("m/data/0", bytes(16), kind)
    return path


def cycle(count: int) -> bytes:
    """A mapping that contains itself, or `count` levels of which each contains the next one twice."""
    nested: dict[str, Any] = {}
    inner = nested
    for _ in range(count):
        inner["a"] = inner["b"] = inner = {}
    inner["a"] = nested if count == 0 else {}
    return pickle.dumps(nested, protocol=2)


@table(
    (lambda path: saved(path, cycle(0)), "is not a state dict"),
    (lambda path: saved(path, cycle(40)), "is not a state dict"),
    (lambda path: saved(path, weights(tensor(4, (3 << 30,), (0,)))), "claim 12884901888 bytes; the file has"),
    (lambda path: saved(path, weights(tensor(4, (1 << 40, 0), (1, 1)))), "claim 4398046511104 bytes; the file"),
    (lambda path: saved(path, weights(*[tensor(4, (200_000,), (0,))] * 4)), "claim 3200000 bytes; the file has"),
    (lambda path: saved(path, weights(tensor(1 << 40, (4,), (1,)))), "claim 4398046511104 bytes; the file has"),
    (lambda path: saved(path, weights(tensor(5, (4,), (1,)))), "m/data/0 has 16 bytes; the file claims 20"),
    (lambda path: saved(path, weights(tensor(4, (2, 2), (3, 1)))), "a tensor claims number 4 of a storage of 4"),
    (lambda path: saved(path, weights(tensor(4, (4,), (1,), 1 << 62))), "a tensor claims number 46116860184273"),
    (lambda path: saved(path, weights(tensor(4, (4,), (1 << 70,)))), "1 strides or no valid numbers"),
    (lambda path: saved(path, weights(tensor(4, (1,) * 99, (1,) * 99))), "a tensor claims 99 dimensions"),
    (lambda path: saved(path, weights(tensor(4, (4,), (1,))), kind=zipfile.ZIP_DEFLATED), "m/data/0 is compressed"),
    (lambda path: saved(path, weights(tensor(4, (4,), (1,), kind="QInt8"))), "a storage of torch.QInt8Storage"),
    (lambda path: saved(path, weights(tensor(4, (4,), (1,))), byteorder="big"), "its numbers are big-endian"),
    (lambda path: saved(path, weights(b"ctorch._utils\n_rebuild_qtensor\n)R")), "a tensor of torch._utils._reb"),
    # Hashes that recurse, a memo and a text of gigabytes, arguments that grow with each call.
    (lambda path: saved(path, b"}" + NESTED + b"Ns."), "is not a state dict"),
    (lambda path: saved(path, b"N" + b"r\xff\xff\xff\xff."), "is not a state dict"),
    (lambda path: saved(path, b"\x96" + struct.pack("<Q", 1 << 40) + b"."), "is not a whole file .*KeyError"),
    (lambda path: saved(path, CALLS), "more than 500000 reads"),
    (lambda path: saved(path, b"N" * 600_000 + b"."), "more than 500000 reads"),
    (lambda path: saved(path, b"cos\nmkdir\n" + group(text("made")) + b"R."), "contains code, which is never run"),
)
def test_claim_beyond_bytes_is_rejected(make: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pickles, "MOST_READS", 500_000)
    with pytest.raises(WeightsUnavailable, match=words) as error:
        read_state(MODEL, make(tmp_path / "w.pt"), ())
    assert "w.pt" in str(error.value) and "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]


def test_tensors_of_a_script_are_its_state_dict_and_cycles_and_other_objects_are_rejected(tmp_path: Path) -> None:
    for content in (b"h\x00", b"c__torch__\nM\n)\x81}(" + text("b") + b"h\x00" + text("c") + b"h\x00ub"):
        script = b"\x80\x02c__torch__\nM\n)\x81q\x00}(" + text("a") + content + b"ub."
        with pytest.raises(InvalidConfig, match="more than 20000 attributes, or contain themselves"):
            read_weights(MODEL, saved(tmp_path / "m.pt", script, code=""))
    network = resnet18()
    found, own = read_weights(MODEL, scripted(network, tmp_path / "m.pt")), network.state_dict()
    assert found.keys() == own.keys() and all(torch.equal(found[name], own[name]) for name in own)
    torch.save({"a.b": torch.zeros(1), "evil": Running(tmp_path / "made")}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as source, zipfile.ZipFile(tmp_path / "m.pt", "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
        target.writestr("plain/code/m.py", "")
    with pytest.raises(InvalidConfig, match=r"cannot be read without running it: it contains posix\.mkdir"):
        read_weights(MODEL, tmp_path / "m.pt")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("is_zip", [True, False])
def test_tensors_of_each_type_and_form_are_those_of_torch(is_zip: bool, tmp_path: Path) -> None:
    shared = torch.arange(24.0).reshape(4, 6)
    state = {"a.t": shared.t(), "a.part": shared[1:3, ::2], "a.none": torch.empty(0, 4), "a.one": torch.tensor(3.5)}
    kinds = ["float64", "float16", "bfloat16", "int64", "int16", "int8", "uint8", "bool"]
    state |= {f"a.{kind}": torch.arange(5).to(getattr(torch, kind)) for kind in kinds}
    state["a.weight"] = torch.nn.Parameter(torch.ones(2))
    state["a.own"] = torch.nn.Parameter(torch.ones(2))
    state["a.own"].mark = "an attribute"  # type: ignore[attr-defined]
    optimizer = {"state": {0: {"step": torch.tensor(3.0)}}}
    torch.save({"model": state, "optimizer": optimizer}, tmp_path / "w.pt", _use_new_zipfile_serialization=is_zip)
    expected = torch.load(tmp_path / "w.pt")["model"]
    found = read_state(MODEL, tmp_path / "w.pt", ())
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert (tensor.dtype, tensor.shape) == (expected[name].dtype, expected[name].shape)
        assert torch.equal(tensor, expected[name])


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
    (path / "__pycache__").mkdir()
    (path / "__pycache__" / "h.cpython-311.pyc.1").symlink_to("gone")  # a server that has the folder writes it
    return path


@pytest.mark.parametrize(("make", "name"), [(zipped, "m.mar"), (tarred, "m.tar.gz"), (foldered, "m")])
def test_each_format_is_unpacked(tmp_path: Path, make: Callable[[Path, dict[str, str]], Path], name: str) -> None:
    (tmp_path / "out").mkdir()
    found = extract(make(tmp_path / name, FILES), tmp_path / "out")
    assert found.files() == ["data/words.txt", "h.py", "model-config.yaml"]
    assert (found.manifest["handler"], found.config) == ("h.py", {"batchSize": 4})
    assert found.read_text("h.py") == "1/0"


@table(
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
    (lambda path: zipped(path, FILES, compress_type=zipfile.ZIP_LZMA), "has compression 14; expected DEFLATE or none"),
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
)
def test_hostile_archive_is_one_line(make: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_archives, "MOST_FILES", 20)
    (tmp_path / "in" / "out").mkdir(parents=True)
    path = make(tmp_path / "m.mar")
    with pytest.raises(InvalidConfig, match=reason) as error:
        extract(path, tmp_path / "in" / "out")
    assert "\n" not in str(error.value)
    assert {each.name for each in tmp_path.iterdir()} == {"in", "m.mar"}


def test_member_with_more_bytes_than_are_free_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3))
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidConfig, match="more than are free on the disk"):
        extract(zipped(tmp_path / "m.mar", FILES), tmp_path / "out")
