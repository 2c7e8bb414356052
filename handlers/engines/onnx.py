"""ONNX Runtime runs an ONNX file on the CPU if OpenVINO cannot run it, or computes something else.

onnx/model.onnx, its external data beside it -> session -> outputs that are tensors
"""

import ctypes
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.aliases import Array
from handlers.engines import ALLOCATION_FAILURES, REJECTED, Arrays, Outputs, available_threads
from handlers.errors import REASON_LENGTH, InvalidConfig, InvalidText, OutOfMemory, OutOfRange

FILE = "onnx/model.onnx"  # the file of an archive; its external data is in the same folder or below
# Datatypes by ONNX Runtime's names of tensors; sequences and maps are not served.
DATATYPES = {
    "tensor(bool)": "BOOL",
    **{f"tensor({kind}int{bits})": f"{kind.upper()}INT{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)},
    **{"tensor(float16)": "FP16", "tensor(bfloat16)": "BF16", "tensor(float)": "FP32", "tensor(double)": "FP64"},
    "tensor(string)": "BYTES",
}
# The error of a file in a newer version of the format, with the newest known version.
NEWER = re.compile(r"max supported IR version: (\d+)")
VERSION = b"\x08"  # the tag of the version, the first field of a file
# The start of an error, which names its place in ONNX Runtime's code.
WHERE = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?(/\S+ onnxruntime::.*?\) )?", re.S
)
# A part of ONNX Runtime's error, and languages whose upper and lower case are their own.
NO_LOCALE = "Failed to construct locale"
UNLIKE = (b"tr", b"az", b"crh", b"ku", b"tt", b"lt")
# The number of STRING in onnx.proto's AttributeProto.AttributeType, and fields of its messages: number and type.
STRING = 3
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Attribute": {"name": (1, "string"), "s": (4, "bytes"), "type": (20, "int32")},
    "Node": {"op_type": (4, "string"), "attribute": (5, "Attribute")},
    "Graph": {"node": (1, "Node")},
    "Model": {"graph": (7, "Graph")},
}
BFLOAT16 = 16  # the number of BFLOAT16 in onnx.proto's TensorProto.DataType


def onnxruntime() -> Any:
    """Import the library, which workers with another engine do not need."""
    return import_module("onnxruntime")


class OnnxEngine:
    """Runs an ONNX file on all of its threads, in the file's own datatypes."""

    def __init__(self, path: Path, *, precision: str = "auto", threads: int = 0) -> None:
        """Read a file; InvalidConfig if it is missing or ONNX Runtime cannot run it."""
        if precision not in ("auto", "fp32"):
            raise InvalidConfig(f"precision: ONNX Runtime computes in the file's own datatypes, not in {precision}")
        if not path.is_file():
            raise InvalidConfig(f"engine: onnxruntime needs {FILE}, which this archive lacks")
        options = onnxruntime().SessionOptions()
        options.intra_op_num_threads = available_threads(threads)
        # Threads that wait without work would take the cores of TorchServe and of other workers.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # The arena would keep the largest amount of memory that any micro-batch needed, for each of its sizes.
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 4  # only fatal messages: errors of a file or a run are raised
        self.session = _session(path, options)
        self._value = onnxruntime().OrtValue
        places = [*self.session.get_inputs(), *self.session.get_overridable_initializers(), *self.session.get_outputs()]
        self._datatypes = {each.name: DATATYPES.get(each.type) for each in places}
        self._has_bf16 = "BF16" in self._datatypes.values()
        self.input_names: Sequence[str] = tuple(each.name for each in self.session.get_inputs())
        self._outputs = [each.name for each in self.session.get_outputs() if each.type in DATATYPES]
        self.description = "onnxruntime cpu"

    def run(self, inputs: Arrays) -> Outputs:
        """Run the model once; raise InvalidText or OutOfRange if it cannot compute with the values."""
        try:
            if self._has_bf16:
                return self._run_bf16(inputs)
            feeds = {name: _text(array) if array.dtype.kind == "O" else array for name, array in inputs.items()}
            return dict(zip(self._outputs, self.session.run(self._outputs, feeds), strict=True))
        except UnicodeDecodeError:
            raise InvalidText("A text is not valid UTF-8, which ONNX Runtime needs.") from None
        except Exception as error:
            if any(sign in str(error).lower() for sign in ALLOCATION_FAILURES):
                raise OutOfMemory from error
            raise OutOfRange(REJECTED) from RuntimeError(_cause(error))

    def _run_bf16(self, inputs: Arrays) -> Outputs:
        """Run with ONNX Runtime's own values, since numpy has no BF16."""
        feeds = {}
        for name, array in inputs.items():
            if self._datatypes[name] == "BF16":
                feeds[name] = self._value.ortvalue_from_numpy_with_onnx_type(_to_bf16(array), BFLOAT16)
            else:
                feeds[name] = self._value.ortvalue_from_numpy(array)
        values = self.session.run_with_ort_values(self._outputs, feeds)
        return {name: _array(value) for name, value in zip(self._outputs, values, strict=True)}


def _session(path: Path, options: Any, data: bytes | None = None, changes: int = 2) -> Any:
    """Open a file, or its changed `data`; change at most twice what this machine or ONNX Runtime rejects."""
    try:
        return onnxruntime().InferenceSession(
            str(path) if data is None else data, sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        changed = _change(path.read_bytes() if data is None else data, str(error)) if changes else None
        if changed is None:
            raise InvalidConfig(f"ONNX Runtime cannot read it: {_cause(error)}") from error
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    return _session(path, options, changed, changes - 1)


def _change(data: bytes, error: str) -> bytes | None:
    """Change what an error names; None for another error.

    A newer version of the format becomes the newest known one, and a missing locale of StringNormalizer C.UTF-8, which
    each machine has, and whose upper and lower case differ only from those of UNLIKE.
    """
    newest = NEWER.search(error)
    if newest is not None and data[:1] == VERSION:
        return VERSION + bytes([int(newest[1])]) + data[2:]
    return _replace_locales(data) if NO_LOCALE in error else None


def _replace_locales(data: bytes) -> bytes | None:
    """Set the locale of each StringNormalizer to C.UTF-8; None if one has a locale of UNLIKE."""
    model = _make_messages()["Model"].FromString(data)
    for node in model.graph.node:
        if node.op_type == "StringNormalizer":
            if any(each.name == "locale" and each.s.startswith(UNLIKE) for each in node.attribute):
                return None
            kept = [each for each in node.attribute if each.name != "locale"]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.add(name="locale", s=b"C.UTF-8", type=STRING)
    return bytes(model.SerializeToString())


def _make_messages() -> dict[str, Any]:
    """Make the messages of onnx.proto with these fields; protobuf keeps all others as they are."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415

    file = FileDescriptorProto(name="onnx_locale.proto", package="onnx_locale", syntax="proto2")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            message.field.add(
                name=field,
                number=number,
                label=3 if field in ("node", "attribute") else 1,
                type={"bytes": 12, "string": 9, "int32": 5}.get(kind, 11),
                type_name=f".onnx_locale.{kind}" if kind in MESSAGES else None,
            )
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"onnx_locale.{name}")) for name in MESSAGES}


def _cause(error: Exception) -> str:
    return " ".join(WHERE.sub("", str(error)).split())[:REASON_LENGTH]


def _text(array: Array) -> Array:
    return np.array([str(each, "utf-8") for each in array.ravel()], object).reshape(array.shape)


def _array(value: Any) -> Array:
    """Copy an output of any datatype but text; BF16 is read from its memory, since numpy cannot read it."""
    if value.data_type() != "tensor(bfloat16)":
        return np.array(value.numpy())
    shape = tuple(value.shape())
    bits = (ctypes.c_uint16 * int(np.prod(shape))).from_address(value.data_ptr())
    return (np.array(bits).reshape(shape).astype(np.uint32) << 16).view(np.float32)


def _to_bf16(array: Array) -> NDArray[np.uint16]:
    """Round to BF16's bits, ties to even, as PyTorch does."""
    bits = np.asarray(array, np.float32, order="C").view(np.uint32)
    rounded = ((bits + ((bits >> 16) & 1) + 0x7FFF) >> 16).astype(np.uint16)
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)
