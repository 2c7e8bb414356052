"""ONNX files in ONNX Runtime.

.onnx -> read_onnx -> its engine, DeclaredSignature
"""

from pathlib import Path
from typing import Any

from handlers.engines.onnx import DATATYPES, OnnxEngine
from handlers.errors import InvalidConfig
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import DeclaredSignature, Tensor

# Converters of scikit-learn and similar libraries add a map for each row to a classifier.
ZIPMAP = "convert the model with zipmap=False (skl2onnx: options={'zipmap': False}) to have tensors"

# The tag of a node's operation in the file, and the operations with random results.
OP_TYPE = b"\x22"
RANDOM = (b"RandomNormal", b"RandomNormalLike", b"RandomUniform", b"RandomUniformLike", b"Multinomial", b"Bernoulli")


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
    """Whether a file has an operation with random results; without the ONNX package, by the fields of its nodes."""
    data = path.read_bytes()
    return any(OP_TYPE + bytes([len(name)]) + name in data for name in RANDOM)


def _describe(each: Any) -> Tensor:
    sizes = [size if isinstance(size, int) and size > 0 else -1 for size in each.shape]
    # A file without a shape has no sizes, like a scalar.
    return Tensor(each.name, DATATYPES[each.type], tuple(sizes) or None)
