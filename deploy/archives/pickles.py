"""Files of torch.save and TorchScript as plain data: no class is imported, no function or array is made.

    ZIP file, or PyTorch's format before 1.6 -> mappings, lists, texts, numbers, claims of tensors
    the claims that `choose` selects, compared with the bytes that are there -> tensors

torch.load trusts states, sizes and storages that a file claims, even with weights_only; pickle's reader in C recurses.
"""

import math
import mmap
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

import torch

# PyTorch's names of the types of storages.
DTYPES = {
    **{"FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16},
    **{"BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32},
    **{"ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool},
}
OLD_MAGIC = 0x1950A86A20F9469CFC6C  # the first object of a file before 1.6, in torch.serialization
# Reads of a file, at most three for each opcode: a checkpoint with an optimizer has 300,000, a vocabulary 3,000,000.
MOST_READS = 5_000_000
MOST_DIMENSIONS = 32
# Bytes of all tensors as a multiple of the file's, since several may share a storage; beside small, expanded ones.
MOST_SHARED, SMALL_BYTES = 4, 2**20
# A state dict has no object of these modules; objects of all others are skipped.
SYSTEM = ("os", "posix", "nt", "sys", "subprocess")
MOST_CHARACTERS = 500
REJECTED = pickle.FRAME + pickle.BYTEARRAY8 + pickle.NEWOBJ_EX  # opcodes that hide reads, or allocate before they read


class InvalidPickle(Exception):
    """The file claims more than it contains, or something that is not read; the message has the claim."""


class Instance(dict[Any, Any]):
    """The items and the state of an object of any class."""

    name = ""
    state: object = None

    def append(self, item: object) -> None:
        """Skip an item of a subclass of list."""


class Global(NamedTuple):
    """The name of a class or function, and its reader, which runs its own instead."""

    name: str
    reader: "_Reader"

    def __call__(self, *arguments: object) -> Any:
        return self.reader.call(self.name, *arguments)


@dataclass(slots=True)
class Storage:
    """The claim that a file has `count` numbers under a name; `start` is their place in a file before 1.6."""

    name: str
    dtype: torch.dtype
    count: int
    start: int = -1

    def size(self) -> int:
        return self.count * self.dtype.itemsize

    def load(self, data: bytes) -> torch.Tensor:
        """Return the numbers in bytes of its size; PyTorch expects 0 or 1 as the byte of a truth value."""
        if not data:
            return torch.empty(0, dtype=self.dtype)
        is_bool = self.dtype == torch.bool
        numbers = torch.frombuffer(bytearray(data), dtype=torch.uint8 if is_bool else self.dtype)
        return numbers.ne(0) if is_bool else numbers


class Claim(NamedTuple):
    """A tensor as the file describes it; `storage` is the name of its function if it is of another kind."""

    storage: Any
    offset: Any = 0
    size: object = ()
    stride: object = ()

    def check(self) -> int:
        """Return its bytes, for which an empty dimension counts as one; InvalidPickle if they are not there."""
        if not isinstance(self.storage, Storage):
            name = self.storage if isinstance(self.storage, str) else "an object"
            raise InvalidPickle(f"it has a tensor of {name[:80]}; save the weights with safetensors")
        size, stride = ([*each] if isinstance(each, tuple) else [-1] for each in (self.size, self.stride))
        are_numbers = all(type(each) is int and 0 <= each < 2**63 for each in (self.offset, *size, *stride))
        if not are_numbers or len(size) != len(stride) or len(size) > MOST_DIMENSIONS:
            raise InvalidPickle(f"a tensor claims {len(size)} dimensions, {len(stride)} strides or no valid numbers")
        last = self.offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if all(size) and last >= self.storage.count:
            raise InvalidPickle(f"a tensor claims number {last} of a storage of {self.storage.count}")
        return math.prod(max(length, 1) for length in size) * self.storage.dtype.itemsize


def read_tensors(path: Path, choose: "Callable[[Any], Mapping[str, Claim]]") -> dict[str, torch.Tensor]:
    """Read the tensors that `choose` selects among a file's data; InvalidPickle or any error if it is not sound."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            (root,) = {name.partition("/")[0] for name in archive.namelist() if name.endswith("/data.pkl")}
            if f"{root}/byteorder" in archive.namelist() and _read(archive, f"{root}/byteorder") != b"little":
                raise InvalidPickle("its numbers are big-endian; save it on a little-endian machine")
            found = _Reader(BytesIO(_read(archive, f"{root}/data.pkl"))).load()
            size = path.stat().st_size
            return _load(choose(found), lambda each: _read(archive, f"{root}/data/{each.name}", each.size()), size)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data)
        magic, _version, _sizes, found = (reader.load() for _ in range(4))
        if magic != OLD_MAGIC:
            raise ValueError("not a file of torch.save")
        reader.locate(data)
        return _load(choose(found), lambda each: data[each.start : each.start + each.size()], len(data))


def _read(archive: zipfile.ZipFile, name: str, size: int | None = None) -> bytes:
    """Read a record, which PyTorch never compresses."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise InvalidPickle(f"{name[-80:]} is compressed, unlike a file that PyTorch wrote")
    if size is not None and info.file_size != size:
        raise InvalidPickle(f"{name[-80:]} has {info.file_size} bytes; the file claims {size}")
    return archive.read(info)


def _load(found: Mapping[str, Claim], read: Callable[[Storage], bytes], most: int) -> dict[str, torch.Tensor]:
    """Read the storages of some claims, from a file of `most` bytes."""
    claimed = sum(claim.check() for claim in found.values())
    storages = {each.storage.name: each.storage for each in found.values()}
    stored = sum(storage.size() for storage in storages.values())
    if stored > most or claimed > MOST_SHARED * most + SMALL_BYTES:
        raise InvalidPickle(f"its tensors claim {max(stored, claimed)} bytes; the file has {most}")
    loaded = {name: storage.load(read(storage)) for name, storage in storages.items()}
    return {name: loaded[each.storage.name].as_strided(*each[2:], each.offset) for name, each in found.items()}


class _Counted:
    """A file of a bounded number of reads, so that a pickle cannot make more objects."""

    def __init__(self, file: BinaryIO | mmap.mmap) -> None:
        self._file, self.left = file, MOST_READS

    def read(self, size: int) -> bytes:
        self.spend(1)
        return self._file.read(size)

    def readline(self) -> bytes:
        self.spend(1)
        return self._file.readline()

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise InvalidPickle(f"it needs more than {MOST_READS} reads; save only the state dict")


class _Reader(pickle._Unpickler):
    """Reads pickles in Python. No opcode imports, hashes, compares or prints an object, or changes a claim."""

    stack: list[Any]
    pop_mark: Callable[[], list[object]]

    def __init__(self, file: BinaryIO | mmap.mmap) -> None:
        self._counted, self._storages = _Counted(file), dict[str, Storage]()
        super().__init__(self._counted, encoding="latin1")

    def locate(self, data: mmap.mmap) -> None:
        """Find the storages behind the pickles of a file before 1.6: for each key a count, then the numbers."""
        for key in self.load():
            storage = self._storages[key if isinstance(key, str) else ""]
            (count,), storage.start = struct.unpack("<q", data.read(8)), data.tell()
            if count != storage.count or storage.start + storage.size() > len(data):
                raise InvalidPickle(f"storage {key[:80]} claims {storage.count} numbers, which the file does not have")
            data.seek(storage.start + storage.size())

    def find_class(self, module: str, name: str) -> Global:
        if module in SYSTEM or len(module) + len(name) > MOST_CHARACTERS:
            raise ValueError(f"it contains {module[:80]}.{name[:80]}")
        return Global(f"{module}.{name}", self)

    def persistent_load(self, key: Any) -> Storage:
        self._counted.spend(len(key))
        kind, dtype, name, _, count, *view = key
        known = DTYPES.get(dtype.name.rpartition(".")[2])
        if kind != "storage" or known is None or not isinstance(name, str) or any(view) or not 0 <= count < 2**63:
            raise InvalidPickle(f"it has a storage of {dtype.name[:80]}; save the weights with safetensors")
        claim = Storage(name, known, int(count))
        if self._storages.setdefault(name, claim) != claim:
            raise InvalidPickle(f"storage {name[:80]} has two sizes or types")
        return self._storages[name]

    def call(self, name: str, *arguments: Any) -> Any:
        """Return the claim of a tensor for PyTorch's functions, and an empty instance for all others."""
        self._counted.spend(len(arguments))
        if name in {"torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"}:
            return Claim(*arguments[:4])
        if name in {"torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"}:
            return arguments[0]
        if name == "torch._tensor._rebuild_from_type_v2":
            return self.call(arguments[0].name, *arguments[2])
        if name.startswith("torch.") and "._rebuild_" in name:
            return Claim(name)
        made = Instance()
        made.name = name
        if name == "collections.OrderedDict" and arguments:  # as Python 2 wrote it
            self._counted.spend(len(arguments[0]))
            made.update((pair[0], pair[1]) for pair in arguments[0] if type(pair[0]) in {str, int})
        return made

    def _put(self, items: list[object] | None = None) -> None:
        """Put keys and values into a mapping. Weights have texts as keys, and states of an optimizer numbers."""
        items = self.pop_mark() if items is None else items
        if isinstance(self.stack[-1], dict):
            pairs = zip(items[::2], items[1::2], strict=True)
            self.stack[-1].update((key, value) for key, value in pairs if type(key) in {str, int})

    def _put_one(self) -> None:
        self._put([self.stack.pop(-2), self.stack.pop()])

    def _make(self) -> None:
        items = self.pop_mark()
        self.stack.append({})
        self._put(items)

    def _build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Instance):
            self.stack[-1].state = state

    # pickle's own steps, but for those that hash or set attributes. A set is a list, and NEWOBJ calls, as REDUCE does.
    _steps: ClassVar[Any] = pickle._Unpickler.dispatch
    dispatch: ClassVar[Any] = {code: step for code, step in _steps.items() if code not in REJECTED} | {
        **{pickle.SETITEMS[0]: _put, pickle.SETITEM[0]: _put_one, pickle.DICT[0]: _make, pickle.BUILD[0]: _build},
        **{pickle.EMPTY_SET[0]: _steps[pickle.EMPTY_LIST[0]], pickle.ADDITEMS[0]: _steps[pickle.APPENDS[0]]},
        **{pickle.FROZENSET[0]: _steps[pickle.LIST[0]], pickle.NEWOBJ[0]: _steps[pickle.REDUCE[0]]},
    }
