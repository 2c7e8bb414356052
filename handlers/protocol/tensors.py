"""Read and write the Open Inference Protocol's tensors as numpy arrays. Pure.

    "data", flat or nested JSON    -> from_json   -> array -> to_json   -> flat JSON
    bytes behind the JSON document -> from_binary -> array -> to_binary -> bytes

Binary tensors are little-endian and row-major. BYTES are arrays of dtype object: their elements are bytes if they were
binary, and str if they were JSON. Each is written as its length in four bytes, and its bytes. Nothing is allocated
before the sizes that a client states agree with the body.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.aliases import Array, DType
from handlers.errors import InvalidConfig, MalformedTensor

BYTES = "BYTES"
BF16 = np.dtype([("bf16", "<u2")])  # the upper two bytes of an FP32, as a structured dtype: numpy has none for it

DTYPES = {
    "BOOL": np.dtype("?"),
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{"FP16": np.dtype("<f2"), "BF16": BF16, "FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")},
    BYTES: np.dtype(object),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

# The types in JSON for each `dtype.kind`.
JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "u": {int}, "i": {int}, "f": {int, float}, "O": {str}}

MAX_DIMENSIONS = 16  # the most dimensions of a tensor; numpy has at most 64
MOST_EXACT = 2**53  # the largest whole number up to which an FP64 has every one
MAX_SIZE = 2**31 - 1  # the most elements of a tensor, and of a dimension, even beside a dimension of 0

_LENGTH = struct.Struct("<I")


def read_dtype(datatype: object) -> DType:
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise MalformedTensor(f'"datatype" must be one of {", ".join(DTYPES)}.')
    return DTYPES[datatype]


def read_shape(shape: object) -> tuple[int, ...]:
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_DIMENSIONS
        or not all(type(size) is int and 0 <= size <= MAX_SIZE for size in shape)
    ):
        raise MalformedTensor(
            f'"shape" must be a list of at most {MAX_DIMENSIONS} whole numbers, none negative or above {MAX_SIZE}.'
        )
    # numpy multiplies the other sizes beside a 0, too.
    if math.prod(shape if all(shape) else [size or 1 for size in shape]) > MAX_SIZE:
        raise MalformedTensor(f'"shape" has more than {MAX_SIZE} elements.')
    return tuple(shape)


def from_binary(dtype: DType, shape: tuple[int, ...], data: memoryview) -> Array:
    """Read a binary tensor of exactly these bytes; arrays of numbers are views of them."""
    count = math.prod(shape)
    if dtype.kind == "O":
        return make_objects(_elements(data, count)).reshape(shape)
    if len(data) != count * dtype.itemsize:
        raise MalformedTensor(f"{_NAMES[dtype]} {list(shape)} needs {count * dtype.itemsize} bytes, not {len(data)}.")
    if dtype.kind == "b":  # numpy accepts only 0 and 1
        return np.asarray(np.frombuffer(data, np.uint8) != 0).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)


def from_bfloat16(array: Array) -> NDArray[np.float32]:
    return (array["bf16"].astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(array: Array) -> Array:
    """Round numbers to BF16, ties to even; larger numbers become infinity, and NaN stays NaN."""
    bits = np.asarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype("<u2").view(BF16)


def _elements(data: memoryview, count: int) -> list[bytes]:
    elements: list[bytes] = []
    start = 0
    while start < len(data):
        first = start + _LENGTH.size
        if first > len(data):
            raise MalformedTensor(f"BYTES: the length of element {len(elements)} is cut off.")
        (length,) = _LENGTH.unpack_from(data, start)
        start = first + length
        if start > len(data):
            raise MalformedTensor(
                f"BYTES: element {len(elements)} has {length} bytes by its length; {len(data) - first} follow."
            )
        if len(elements) == count:
            raise MalformedTensor(f"BYTES: more than the {count} elements of the shape.")
        elements.append(bytes(data[first:start]))
    if len(elements) != count:
        raise MalformedTensor(f"BYTES: {len(elements)} elements; the shape has {count}.")
    return elements


def from_json(dtype: DType, shape: tuple[int, ...], data: object) -> Array:
    """Read a tensor's "data": a flat list, row by row, or lists nested like the shape."""
    if dtype == BF16:
        raise MalformedTensor("BF16 must be binary, with parameters.binary_data_size.")
    if not isinstance(data, list):
        raise MalformedTensor('"data" must be a list; a binary tensor has parameters.binary_data_size instead.')
    objects, types = read_floats(*to_objects(data), dtype.kind)
    if not types <= JSON_TYPES[dtype.kind]:
        raise MalformedTensor(f'"data" must be a flat list of {_NAMES[dtype]}, or nested like the shape.')
    if objects.size and objects.ndim != 1 and objects.shape != shape:
        raise MalformedTensor(f'"data" is nested as {list(objects.shape)}; "shape" is {list(shape)}.')
    if objects.size != math.prod(shape):
        raise MalformedTensor(f'"data" has {objects.size} elements; "shape" has {math.prod(shape)}.')
    try:
        return convert(objects, dtype).reshape(shape)
    except OverflowError:
        raise MalformedTensor(f'"data" contains a number that {_NAMES[dtype]} cannot represent.') from None


def to_objects(data: object) -> tuple[Array, set[type]]:
    """Make an array of objects of nested lists, and return their types, too."""
    # Objects: otherwise numpy turns true into a number, and every string needs the memory of the longest.
    objects = np.array(data, object)
    return objects, set(map(type, objects.ravel().tolist()))


def read_floats(objects: Array, types: set[type], kind: str) -> tuple[Array, set[type]]:
    """Turn floats without a fraction into whole numbers or booleans: generated clients have one type for numbers."""
    if float not in types or kind not in "iub":
        return objects, types
    is_whole = [type(each) is float and each.is_integer() and abs(each) <= MOST_EXACT for each in objects.flat]
    if kind == "b":
        is_whole = [whole and each in (0, 1) for whole, each in zip(is_whole, objects.flat, strict=True)]
    to_type = bool if kind == "b" else int
    read = [to_type(each) if whole else each for whole, each in zip(is_whole, objects.flat, strict=True)]
    return make_objects(read).reshape(objects.shape), set(map(type, read))


def convert(objects: Array, dtype: DType) -> Array:
    """Convert objects of JSON_TYPES to a dtype; raise OverflowError if a number is out of its range."""
    try:
        with np.errstate(over="raise"):
            return np.asarray(objects.astype(dtype))
    except FloatingPointError as error:
        raise OverflowError from error


def datatype_of(array: Array) -> str:
    return _NAMES[BF16 if array.dtype == BF16 else array.dtype.newbyteorder("<")]


def to_binary(array: Array) -> bytes:
    if array.dtype.kind == "O":
        return b"".join(_LENGTH.pack(len(element)) + element for element in encode_elements(array))
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def to_json(array: Array) -> Sequence[object] | Array:
    """Return a tensor's "data", flat, for an encoder that accepts arrays; invalid UTF-8 is replaced."""
    if array.dtype == BF16:
        array = from_bfloat16(array)
    if array.dtype.kind == "O":
        return [element if isinstance(element, str) else element.decode(errors="replace") for element in array.ravel()]
    return np.ascontiguousarray(array).ravel()


def encode_elements(array: Array) -> list[bytes]:
    """Return the elements of BYTES, row by row; text as UTF-8."""
    return [element.encode() if isinstance(element, str) else element for element in array.ravel()]


def make_objects(elements: Sequence[object]) -> Array:
    """Make a one-dimensional array of elements of any type."""
    return np.fromiter(elements, object, len(elements))


VECTOR_DTYPES = ("float", "int8", "uint8", "binary", "ubinary")


def read_ranges(given: Sequence[Any] | None, size: int) -> NDArray[np.float32] | None:
    """Read the least and the greatest value of int8 and uint8, (2, D): each is one number, or one a dimension."""
    try:
        bounds = None if given is None else [np.broadcast_to(np.float32(bound), size) for bound in given]
    except ValueError:
        raise InvalidConfig(f"int8_ranges: each list must have {size} numbers, one for each dimension") from None
    if bounds is not None and not (bounds[0] < bounds[1]).all():
        raise InvalidConfig("int8_ranges: each least value must be below its greatest")
    return None if bounds is None else np.stack(bounds)


def quantize(vectors: NDArray[np.float32], dtype: str, ranges: Any) -> Array:
    """Convert vectors, (B, D), to one of VECTOR_DTYPES; `binary` and `ubinary` have eight dimensions in a byte."""
    if dtype == "float":
        return vectors
    if dtype in ("binary", "ubinary"):
        packed = np.packbits(vectors > 0, axis=-1)
        return (packed - 128).astype(np.int8) if dtype == "binary" else packed
    least, greatest = ranges[:, : vectors.shape[1]]
    levels: NDArray[np.float32] = np.clip(np.floor((vectors - least) / ((greatest - least) / 255)), 0, 255)
    return levels.astype(np.uint8) if dtype == "uint8" else (levels - 128).astype(np.int8)
