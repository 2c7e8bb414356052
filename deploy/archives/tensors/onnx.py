"""ONNX files in ONNX Runtime.

.onnx -> read_onnx -> its engine, DeclaredSignature
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.archives.tensors.proof import Mixed
from handlers.engines.onnx import DATATYPES, OnnxEngine
from handlers.errors import InvalidConfig
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import DeclaredSignature, Tensor

# Converters of scikit-learn and similar libraries add a map for each row to a classifier.
ZIPMAP = "convert the model with zipmap=False (skl2onnx: options={'zipmap': False}) to have tensors"

# The tag of a node's operation in the file, and the operations with random results.
OP_TYPE = b"\x22"
RANDOM = (b"RandomNormal", b"RandomNormalLike", b"RandomUniform", b"RandomUniformLike", b"Multinomial", b"Bernoulli")
BRANCHES = (b"If", b"Loop", b"Scan")
# Those that quantize the numbers of all rows by their largest.
DYNAMIC = (b"DynamicQuantizeLinear", b"DynamicQuantizeMatMul", b"DynamicQuantizeLSTM")


def read_onnx(path: Path, config: TensorsConfig) -> tuple[OnnxEngine, DeclaredSignature]:
    """Read a file and its description; outputs other than tensors are left out."""
    engine = OnnxEngine(path)
    session = engine.session
    # Old exporters list weights among the inputs; constants may set those.
    optional = [each for each in session.get_overridable_initializers() if each.name in config.constants]
    inputs, outputs = [*session.get_inputs(), *optional], session.get_outputs()
    if others := [f"{each.name} is {each.type}" for each in inputs if each.type not in DATATYPES]:
        raise InvalidConfig(f"inputs must be tensors; {', '.join(others)}")
    tensors = [each for each in outputs if each.type in DATATYPES]
    if not tensors or not inputs:
        others = [f"{each.name} is {each.type}" for each in outputs]
        raise InvalidConfig(
            f"it has {len(inputs)} inputs, and no tensor among its outputs: {', '.join(others)}; {ZIPMAP}"
        )
    return engine, DeclaredSignature(tuple(map(_describe, inputs)), tuple(map(_describe, tensors)))


def has_random(path: Path) -> bool:
    """Whether a file has an operation with random results."""
    return find_operation(path, RANDOM) is not None


def find_operation(path: Path, names: Sequence[bytes]) -> str | None:
    """Name the first of these operations that a file has; without the ONNX package, by the fields of its nodes."""
    data = path.read_bytes()
    return next((name.decode() for name in names if OP_TYPE + bytes([len(name)]) + name in data), None)


@contextmanager
def explain_quantized(path: Path) -> Iterator[None]:
    """Name the reason of Mixed that is common: each run quantizes the numbers of all its rows by their largest."""
    try:
        yield
    except Mixed as error:
        if name := find_operation(path, DYNAMIC):
            raise Mixed(
                f"it is quantized dynamically ({name}), by one scale for all rows, so a row's values depend on the "
                "others'; quantize it statically or use the file before quantization, or max_batch_items: 1 serves "
                "rows one by one"
            ) from error
        raise


def _describe(each: Any) -> Tensor:
    sizes = [size if isinstance(size, int) and size > 0 else -1 for size in each.shape]
    # A file without a shape has no sizes, like a scalar.
    return Tensor(each.name, DATATYPES[each.type], tuple(sizes) or None)
