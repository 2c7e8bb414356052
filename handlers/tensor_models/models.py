"""Loads what an archive of tensors holds: a graph, a program or a function, and what it says of itself.

function/infer.py       -> FunctionEngine, names of its inputs
model.xml               -> OpenVinoEngine   } signature.json
model.pt2, model.pt     -> ProgramEngine    }
"""

from pathlib import Path

import torch

from handlers.archive_files import GRAPH
from handlers.engines import Engine
from handlers.engines.function import FunctionEngine
from handlers.engines.openvino import OpenVinoEngine
from handlers.engines.program import EXPORTED, SCRIPTED, ProgramEngine, load_program
from handlers.errors import InvalidConfig
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.function import FILE, FOLDER, load_function
from handlers.tensor_models.signature import SIGNATURE, Said, Signature, Tensor, narrowed, signed

# OpenVINO's CPU plugin computes these in 32 bits, and says nothing of what it cuts off: 2**40 + 3 becomes 3.
OPENVINO_COMPUTES_IN = {"INT64": "INT32", "UINT64": "INT32"}


def load_model(
    folder: Path, config: TensorsConfig, device: torch.device, *, uses_torch: bool
) -> tuple[Engine, Signature]:
    """Load the model of an archive.

    Args:
        folder: the archive, unpacked.
        config: its settings.
        device: where it is to run.
        uses_torch: whether PyTorch is to run it; an archive without a program for it has OpenVINO's graph run instead
            where nothing else was asked for.

    Raises:
        InvalidConfig: it cannot be served.
    """
    functions = folder / FOLDER
    if functions.is_dir():
        return _function(functions, config, device)
    path = folder / SIGNATURE
    if not path.is_file():
        raise InvalidConfig(
            f"this archive has neither {SIGNATURE} nor {FOLDER}/{FILE}; name weights, and build it again"
        )
    signature = signed(Said.from_json(path.read_text(encoding="utf-8")), config)
    has_program = any((folder / name).is_file() for name in (EXPORTED, SCRIPTED))
    if uses_torch and (has_program or config.engine == "torch"):
        dtypes = {name: torch.bfloat16 if t.datatype == "BF16" else None for name, t in signature.inputs.items()}
        names = [*signature.outputs] if signature.outputs else []
        program = load_program(folder, device)
        return ProgramEngine(
            program, device, dtypes, names, precision=config.precision, threads=config.threads
        ), signature
    engine = OpenVinoEngine(folder / GRAPH, precision=config.precision, threads=config.threads)
    return engine, narrowed(signature, OPENVINO_COMPUTES_IN)


def _function(folder: Path, config: TensorsConfig, device: torch.device) -> tuple[Engine, Signature]:
    function = load_function(folder)
    if function.load is not None:
        try:
            function.load(folder, str(device))
        except Exception as error:
            # Its owner reads this line; the traceback follows.
            reason = str(error).partition("\n")[0]
            raise InvalidConfig(f"{FILE}: load failed: {type(error).__name__}: {reason}") from error
    signature = signed(Said(tuple(Tensor(name) for name in function.inputs)), config)
    return FunctionEngine(function.infer, function.inputs), signature
