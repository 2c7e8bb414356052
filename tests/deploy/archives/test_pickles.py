"""A pickle's claims are compared with the bytes that are there, and no object of its choice is made."""

import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deploy.archives import pickles
from deploy.archives.sources import WeightsUnavailable
from deploy.archives.state_dicts import read_state
from deploy.migrate.weights import read_weights
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig

MODEL = ModelEntry("own", "image_classification", "1", Path())


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    return b"\x8a\x09" + value.to_bytes(9, "little")


def group(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def tensor(count: int, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0, kind: str = "Float") -> bytes:
    """A tensor of a storage 0 of `count` numbers."""
    storage = group(text("storage"), f"ctorch\n{kind}Storage\n".encode(), text("0"), text("cpu"), number(count)) + b"Q"
    shape = group(*map(number, size)), group(*map(number, stride))
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + group(storage, number(offset), *shape, b"\x89", b"N") + b"R"


def weights(*values: bytes) -> bytes:
    named = [text(f"a.{at}") + value for at, value in enumerate(values)]
    return b"\x80\x02}(" + b"".join(named) + b"u."


def saved(path: Path, pickled: bytes, kind: int = zipfile.ZIP_STORED, **more: str) -> Path:
    """A file as torch.save writes it, of a pickle and one storage of 16 bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", pickled)
        archive.writestr("m/version", "3\n")
        archive.writestr("m/data/0", bytes(16), kind)
        for name, content in more.items():
            archive.writestr(f"m/{name}" + "/m.py" * (name == "code"), content)
    return path


def cycle(count: int) -> bytes:
    """A mapping that contains itself, or `count` levels of which each contains the next one twice."""
    nested: dict[str, Any] = {}
    inner = nested
    for _ in range(count):
        inner["a"] = inner["b"] = inner = {}
    inner["a"] = nested if count == 0 else {}
    return pickle.dumps(nested, protocol=2)


NESTED = b")" + b"\x85" * 200_000
CALLS = b"ca\nb\nq\x01(" + b"N" * 50_000 + b"tq\x00" + b"h\x01h\x00R0" * 200 + b"N."


@pytest.mark.parametrize(
    ("make", "words"),
    [
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
    ],
)
def test_claim_beyond_the_bytes_is_refused_in_one_line_that_names_it(
    make: Callable[[Path], Path], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pickles, "MOST_READS", 500_000)
    with pytest.raises(WeightsUnavailable, match=words) as error:
        read_state(MODEL, make(tmp_path / "w.pt"), ())
    assert "w.pt" in str(error.value) and "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["w.pt"]


def test_script_that_contains_itself_or_one_module_many_times_is_refused(tmp_path: Path) -> None:
    for content in (b"h\x00", b"c__torch__\nM\n)\x81}(" + text("b") + b"h\x00" + text("c") + b"h\x00ub"):
        script = b"\x80\x02c__torch__\nM\n)\x81q\x00}(" + text("a") + content + b"ub."
        with pytest.raises(InvalidConfig, match="more than 20000 attributes, or contain themselves"):
            read_weights(MODEL, saved(tmp_path / "m.pt", script, code=""))


@pytest.mark.parametrize("is_zip", [True, False])
def test_tensors_of_each_type_and_form_are_those_of_torch(is_zip: bool, tmp_path: Path) -> None:
    shared = torch.arange(24.0).reshape(4, 6)
    state = {"a.t": shared.t(), "a.part": shared[1:3, ::2], "a.none": torch.empty(0, 4), "a.one": torch.tensor(3.5)}
    kinds = (
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
    state |= {f"a.{kind}": torch.arange(5).to(kind) for kind in kinds}
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
