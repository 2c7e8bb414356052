"""What an archive of tensors takes and gives, as one line for whoever built it. Nothing here imports torch, or a model.

NAME.mar -> signature.json, or infer.py's parameters, and model-config.yaml -> image FP32 [-1, 28, 28] -> ...
"""

import ast
from collections.abc import Iterable
from pathlib import Path

from deploy.build.fingerprint import packed
from deploy.models import TENSORS, Model
from handlers.config import parse
from handlers.engines.function import FILE, FOLDER
from handlers.errors import InvalidConfig
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import SIGNATURE, Said, Tensor, signed


def line(model: Model, path: Path) -> str | None:
    """Write inputs and outputs, with their datatypes and shapes; None for any other task.

    Args:
        model: the entry of the list, whose configuration adds to what the model says.
        path: its archive, of any format.
    """
    if model.handler != TENSORS:
        return None
    try:
        said = _said(path)
        signature = signed(said, parse(TensorsConfig, model.config().get("handler")))
    except (LookupError, ValueError, InvalidConfig):
        # Its function takes its parameters from elsewhere; whoever loads it sees them.
        return None
    outputs = "whatever infer gives" if signature.outputs is None else _listed(signature.outputs.values())
    return f"{_listed(signature.inputs.values())} -> {outputs}"


def _said(path: Path) -> Said:
    try:
        return Said.from_json(packed(path, SIGNATURE).decode())
    except LookupError:
        module = ast.parse(packed(path, f"{FOLDER}/{FILE}"))
    (infer,) = (node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "infer")
    return Said(tuple(Tensor(each.arg) for each in (*infer.args.args, *infer.args.kwonlyargs)))


def _listed(tensors: Iterable[Tensor]) -> str:
    return ", ".join(f"{tensor.name} {tensor}" for tensor in tensors)
