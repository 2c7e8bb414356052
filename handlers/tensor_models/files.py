"""Read arrays of .npy and .npz bodies, and write them. Pure: nothing that a client sends is unpickled or executed.

    b"\\x93NUMPY..." -> from_npy -> one array
    b"PK..."        -> from_npz -> arrays by name

Sizes are held against what was sent before anything is allocated: a header may claim any shape, and an archive's member
may unpack to any size.
"""

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from handlers.errors import BodyTooLarge, MalformedTensor
from handlers.protocol.tensors import BF16, DTYPES, MAX_DIMENSIONS, MAX_SIZE, encoded, from_bfloat16, objects

NPY, NPZ = "application/x-npy", "application/x-npz"
# How the files begin.
NPY_MAGIC, NPZ_MAGIC = b"\x93NUMPY", b"PK"
# The most arrays of one .npz, and how the entry of each begins in its directory; chance makes such bytes once in 4 GB.
MOST_ARRAYS, MEMBER = 1000, b"PK\x01\x02"

# So many headers are remembered, none of more bytes: those of numpy.save have 128, of any array that a tensor is.
REMEMBERED, LARGEST_REMEMBERED = 256, 256

_KNOWN = set(DTYPES.values())
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def from_npy(body: bytes | bytearray) -> NDArray[Any]:
    """Read a .npy file.

    Returns:
        An array of a dtype of DTYPES that uses the body where it is; text is objects: bytes, or str where it is
        Unicode.

    Raises:
        MalformedTensor: it is no such file, or holds Python objects, records or numbers that no datatype has.
    """
    # Magic and version take eight bytes, the header's length two of a file of version 1.0.
    size = 10 + int.from_bytes(body[8:10], "little") if body[6:8] == b"\1\0" else len(body)
    head = bytes(body[:size])
    header = _remembered(head) if size <= LARGEST_REMEMBERED else _read(head)
    return _array(memoryview(body)[header.size :], header)


class Header(NamedTuple):
    """What a .npy file says of its array, and how many bytes it takes to say it."""

    shape: Any
    is_fortran: bool
    dtype: np.dtype[Any]
    size: int


def _read(head: bytes) -> Header:
    """Read the header that some bytes begin with."""
    file = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        if version not in ((1, 0), (2, 0)):
            raise MalformedTensor(f"The .npy file is of version {version[0]}.{version[1]}; 1.0 and 2.0 are read.")
        return Header(*read(file), file.tell())
    except MalformedTensor:
        raise
    except Exception:
        # A header is Python's literals, so errors of tokens, syntax and dtypes are possible.
        raise MalformedTensor("The body is no .npy file: its header is broken.") from None


# Python compiles a header to read it, and clients send the same few: 20 % of what the identity costs.
_remembered = lru_cache(maxsize=REMEMBERED)(_read)


def _array(data: memoryview, header: Header) -> NDArray[Any]:
    shape, is_fortran, dtype, _ = header
    if dtype.hasobject:
        raise MalformedTensor("The .npy file holds Python objects, which are not read; text goes as dtype S or U.")
    is_text = dtype.kind in "SU" and dtype.itemsize > 0
    if not is_text and dtype.newbyteorder("<") not in _KNOWN:
        raise MalformedTensor(f"The .npy file holds {str(dtype)[:20]}, which no datatype of the protocol is.")
    if len(shape) > MAX_DIMENSIONS or any(type(size) is not int or size < 0 for size in shape):
        raise MalformedTensor(f"The .npy file has a shape of {len(shape)} dimensions; {MAX_DIMENSIONS} are the most.")
    # numpy counts sizes beside a 0, too.
    count = math.prod(shape)
    if math.prod(size or 1 for size in shape) > MAX_SIZE or len(data) != count * dtype.itemsize:
        raise MalformedTensor(f"The .npy file has {len(data)} bytes behind its header, which are not its shape's.")
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")
    if is_text:
        try:
            return objects(array.ravel().tolist()).reshape(array.shape)
        except (ValueError, SystemError):
            raise MalformedTensor("The .npy file holds text that is none: a character beyond Unicode.") from None
    if dtype.kind == "b":  # a byte other than 0 and 1 is no bool to numpy
        return np.asarray(array.view(np.uint8) != 0)
    return array.astype(dtype.newbyteorder("<"), copy=False)


def from_npz(body: bytes | bytearray, most_bytes: int) -> dict[str, NDArray[Any]]:
    """Read a .npz file, compressed or not, whose arrays take at most `most_bytes` together.

    Raises:
        MalformedTensor: it is no such file, or one of its arrays is none.
        BodyTooLarge: the arrays are larger.
    """
    # Counted before they are listed, which takes half a second for the members that 6 MiB have room for.
    if body.count(MEMBER) > MOST_ARRAYS:
        raise MalformedTensor(f"The .npz file has more than {MOST_ARRAYS} arrays.")
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            members = archive.infolist()
            if len({member.filename for member in members}) < len(members):
                raise MalformedTensor("The .npz file has two arrays of one name.")
            if sum(member.file_size for member in members) > most_bytes:
                raise BodyTooLarge(f"The .npz file unpacks to more than max_body_bytes, {most_bytes}.")
            return {member.filename.removesuffix(".npy"): from_npy(_unpacked(archive, member)) for member in members}
    except (
        zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError, OSError, OverflowError
    ):  # fmt: skip
        raise MalformedTensor("The body is no .npz file: it is broken.") from None


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    if member.compress_type not in _METHODS:
        raise MalformedTensor("The .npz file is packed in another way than numpy.savez and savez_compressed do.")
    with archive.open(member) as file:
        # Never more than the member claims, which was counted.
        return file.read(member.file_size)


def padded_bytes(array: NDArray[Any]) -> int:
    """Return how many bytes an array takes in a file, where each text is as long as the longest."""
    return array.size * max(map(len, encoded(array)), default=0) if array.dtype.kind == "O" else array.nbytes


def to_npy(array: NDArray[Any]) -> bytes:
    """Write an array as a .npy file; BF16 as float32, text as fixed-width bytes."""
    if array.dtype == BF16:
        array = from_bfloat16(array)
    elif array.dtype.kind == "O":
        array = np.array(encoded(array), np.bytes_).reshape(array.shape)
    array = np.asarray(array, order="C")
    return _header(array.dtype.str, array.shape) + array.tobytes()


@lru_cache(maxsize=REMEMBERED)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Write the header of an array in C order."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def to_npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Write arrays as a .npz file, not compressed; see `to_npy`."""
    file = io.BytesIO()
    # savez takes names as keyword arguments, of which `file` is its own.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", to_npy(array))
    return file.getvalue()
