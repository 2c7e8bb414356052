"""ONNX files as ONNX Runtime reads them.

.onnx -> read_onnx -> its engine, DeclaredSignature
"""

from pathlib import Path
from typing import Any

from handlers.engines.onnx import DATATYPES, OnnxEngine
from handlers.errors import InvalidConfig
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import DeclaredSignature, Tensor

# Converters of scikit-learn and its relatives end a classifier with a map for each row.
ZIPMAP = "convert the model with zipmap=False (skl2onnx: options={'zipmap': False}) to have tensors"


def read_onnx(path: Path, config: TensorsConfig) -> tuple[OnnxEngine, DeclaredSignature]:
    """Read a file, and what it says of itself; outputs that are no tensors are left out.

    Raises:
        InvalidConfig: it is broken, has what ONNX Runtime does not run, or no tensors.
    """
    engine = OnnxEngine(path)
    session = engine.session
    # Old exporters list weights among the inputs: those may be set, and need not be.
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
    return engine, DeclaredSignature(tuple(map(_said, inputs)), tuple(map(_said, tensors)))


def _said(each: Any) -> Tensor:
    sizes = [size if isinstance(size, int) and size > 0 else -1 for size in each.shape]
    # A scalar has no sizes either, as where the file says none.
    return Tensor(each.name, DATATYPES[each.type], tuple(sizes) or None)
