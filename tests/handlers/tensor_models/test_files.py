import io
import pickle
import struct
import tracemalloc
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from numpy.typing import NDArray

from handlers.errors import BodyTooLarge, InvalidInput, MalformedTensor
from handlers.protocol.tensors import BF16, to_bfloat16
from handlers.tensor_models.files import MOST_ARRAYS, from_npy, from_npz, to_npy, to_npz

MOST_BYTES = 2**20


def written(array: NDArray[Any], version: tuple[int, int] | None = None, **keywords: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version, **keywords)
    return file.getvalue()


def headed(header: str, data: bytes = bytes(4)) -> bytes:
    """A .npy file with any header."""
    encoded = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(encoded)) + encoded + data


def described(descr: str, shape: str = "(1,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}"


NUMBERS = ["?", "u1", "i1", *(order + kind for order in "<>" for kind in ("u2", "u8", "i4", "i8", "f2", "f4", "f8"))]


@given(
    st.sampled_from(NUMBERS).flatmap(
        lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, min_side=0))
    ),
    st.booleans(),
    st.sampled_from([(1, 0), (2, 0)]),
)
def test_npy_of_numbers_is_read_as_numpy_reads_it(
    array: NDArray[Any], is_fortran: bool, version: tuple[int, int]
) -> None:
    body = written(np.asfortranarray(array) if is_fortran else array, version)
    read, wanted = from_npy(body), np.load(io.BytesIO(body))
    np.testing.assert_array_equal(read, wanted)
    assert (read.dtype, read.shape) == (wanted.dtype.newbyteorder("<"), wanted.shape)


@pytest.mark.parametrize(
    "array",
    [np.array([["a", "bcd"], ["", "é"]]), np.array([b"a", b"", b"\xff"]), np.array("alone"), np.array(["a"], ">U3")],
)
def test_npy_of_text_is_objects_of_the_same_text(array: NDArray[Any]) -> None:
    read = from_npy(written(array))
    assert read.dtype == object
    assert (read.shape, read.tolist()) == (array.shape, array.tolist())


class Bomb:
    """Unpickled, it ends the test."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("a pickle was executed",)


PICKLE = written(np.array([Bomb()], object), allow_pickle=True)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(PICKLE, "Python objects", id="pickle"),
        pytest.param(written(np.zeros(2, [("a", "<f4"), ("b", "<i4")])), "no datatype", id="records"),
        pytest.param(headed(described("'<f4'", "(2,)")), "4 bytes behind its header", id="cut off"),
        pytest.param(headed(described("'<f4'", f"({2**70}, 0)"), b""), "not its shape's", id="huge beside 0"),
        pytest.param(headed(described("'<f4'", f"({'1,' * 17})")), "17 dimensions; 16", id="17 dimensions"),
        pytest.param(headed(described("','")), "header is broken", id="dtype that is no Python"),
        pytest.param(b"\x93NUMPY\x01\x00\xff\xff{", "header is broken", id="header cut off"),
        pytest.param(b"\x93NUMPY\x09\x00" + bytes(20), "version 9.0; 1.0 and 2.0", id="version 9"),
        pytest.param(written(np.array(["a"]))[:-4] + b"\xff\xff\xff\x7f", "beyond Unicode", id="no character"),
    ],
)
def test_npy_that_is_none_is_told_so(body: bytes, message: str) -> None:
    with pytest.raises(MalformedTensor, match=message):
        from_npy(body)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


ONES = written(np.ones(2, np.float32))


def claims(body: bytes, size: int) -> bytes:
    """The same archive whose only member claims to unpack to another size."""
    at = body.rindex(b"PK\x01\x02") + 24
    return body[:at] + struct.pack("<I", size) + body[at + 4 :]


def crowded(count: int) -> bytes:
    """An archive that lists one member many times."""
    body = zipped({"a.npy": ONES})
    start, end = body.rindex(b"PK\x01\x02"), body.rindex(b"PK\x05\x06")
    entries = body[start:end] * count
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count % 2**16, count % 2**16, len(entries), start, 0)
    return body[:start] + entries + tail


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_npz_is_read_as_numpy_reads_it(write: Any) -> None:
    file = io.BytesIO()
    write(file, x=np.arange(6, dtype=">i2").reshape(2, 3), text=np.array(["a", "bc"]), number=np.float64(2))
    read = from_npz(file.getvalue(), MOST_BYTES)
    wanted = {"x": [[0, 1, 2], [3, 4, 5]], "text": ["a", "bc"], "number": 2.0}
    assert {name: array.tolist() for name, array in read.items()} == wanted


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(zipped({"x.pkl": pickle.dumps(1)}), "no .npy file", id="no array"),
        pytest.param(zipped({"x.npy": ONES}, zipfile.ZIP_BZIP2), "another way", id="bzip2"),
        pytest.param(crowded(2), "two arrays of one name", id="one name twice"),
        pytest.param(crowded(MOST_ARRAYS + 1), "more than 1000", id="many members"),
        pytest.param(zipped({"x.npy": ONES}).replace(b"\0\0\x80?", bytes(4), 1), "broken", id="checksum"),
        pytest.param(claims(zipped({"x.npy": ONES}, zipfile.ZIP_DEFLATED), 130), "broken|behind", id="claims less"),
    ],
)
def test_npz_that_is_none_is_told_so(body: bytes, message: str) -> None:
    with pytest.raises(MalformedTensor, match=message):
        from_npz(body, MOST_BYTES)


ZEROS = written(np.zeros(MOST_BYTES, np.uint8))


@pytest.mark.parametrize(
    ("body", "error", "most"),
    [
        # Refused before anything is unpacked.
        (zipped({f"{name}.npy": ZEROS for name in "abc"}, zipfile.ZIP_DEFLATED), BodyTooLarge, MOST_BYTES / 2),
        # A member unpacks to no more than it claims.
        (claims(zipped({"a.npy": ZEROS * 16}, zipfile.ZIP_DEFLATED), 200), MalformedTensor, MOST_BYTES),
    ],
)
def test_npz_bomb_takes_no_memory(body: bytes, error: type[Exception], most: float) -> None:
    assert len(body) < 20_000
    tracemalloc.start()
    with pytest.raises(error):
        from_npz(body, MOST_BYTES)
    assert tracemalloc.get_traced_memory()[1] < most
    tracemalloc.stop()


WHOLE = [ONES, written(np.array(["ab", "é"])), zipped({"x.npy": ONES, "y.npy": ONES})]


@given(
    st.sampled_from([*WHOLE, zipped({"x.npy": ONES}, zipfile.ZIP_DEFLATED)]),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2), st.binary(max_size=4)), min_size=1, max_size=4),
)
def test_file_with_any_bytes_changed_is_an_array_or_a_clients_mistake(
    whole: bytes, changes: list[tuple[int, int, bytes]]
) -> None:
    body = bytearray(whole)
    for place, length, data in changes:
        at = place % len(body)
        body[at : at + length] = data
    try:
        read = from_npz(body, MOST_BYTES) if whole.startswith(b"PK") else {"": from_npy(body)}
    except InvalidInput:
        return
    assert all(isinstance(array, np.ndarray) for array in read.values())


def test_written_files_are_what_numpy_reads() -> None:
    arrays = {
        "file": np.arange(6, dtype=np.int16).reshape(3, 2).T,
        "text": np.array([b"a", "é", b""], object),
        "narrow": to_bfloat16(np.array([1.5, -2.0])),
    }
    assert arrays["narrow"].dtype == BF16
    with np.load(io.BytesIO(to_npz(arrays)), allow_pickle=False) as read:
        assert {name: read[name].tolist() for name in read} == {
            "file": [[0, 2, 4], [1, 3, 5]],
            "text": [b"a", "é".encode(), b""],
            "narrow": [1.5, -2.0],
        }
    assert np.load(io.BytesIO(to_npy(np.array(True)))).tolist() is True
