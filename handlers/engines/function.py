"""A plain function of arrays as an engine, which may run any library: numpy, scikit-learn.

folder with infer.py -> load_function -> Function: infer, load, the names of its inputs
function, its inputs -> FunctionEngine
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handlers.engines import Arrays, Outputs
from handlers.errors import InvalidConfig, OutOfMemory

FOLDER = "function"  # the folder of an archive that contains the function's file
FILE = "infer.py"
MODULE = "infer"  # the module's name, which pickles of its classes contain

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class FunctionEngine:
    """Runs a function once per micro-batch, with arrays (B, ...) by name; it returns named arrays (B, ...)."""

    def __init__(self, function: Callable[..., Outputs], input_names: Sequence[str]) -> None:
        self._function = function
        self.input_names = tuple(input_names)
        self.description = f"function {getattr(function, '__qualname__', type(function).__name__)}"

    def run(self, inputs: Arrays) -> Outputs:
        try:
            outputs: Any = self._function(**inputs)
            if not isinstance(outputs, Mapping):
                return outputs  # type: ignore[no-any-return] # the caller rejects it
            # Copies: the function may use the same arrays for its next run.
            return {name: np.array(each) if isinstance(each, np.ndarray) else each for name, each in outputs.items()}
        except MemoryError as error:
            raise OutOfMemory from error
        except SystemExit as error:
            raise RuntimeError("the function called exit") from error  # it would end the worker and all other requests


@dataclass(frozen=True, slots=True)
class Function:
    """The definitions of infer.py."""

    infer: Callable[..., Any]  # arrays (B, ...) by name -> arrays (B, ...) by name
    inputs: tuple[str, ...]  # the names of its parameters, in order
    load: Callable[[Path, str], object] | None = None  # called once before, with the folder and the device ("cuda:0")


def load_function(folder: Path) -> Function:
    """Import infer.py from a folder, whose other modules it may import."""
    path = folder / FILE
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InvalidConfig(f"{FILE}: the file is missing")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    sys.path.append(str(folder))  # last, so that a module of the folder never replaces one that other code imports
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise InvalidConfig(f"{FILE}: the import failed: {type(error).__name__}: {reason}") from error
    infer, load = getattr(module, "infer", None), getattr(module, "load", None)
    if not callable(infer):
        raise InvalidConfig(f"{FILE}: infer(**inputs) is missing or not a function")
    if load is not None and not callable(load):
        raise InvalidConfig(f"{FILE}: load is not a function; load(folder, device) is called once")
    return Function(infer, _inputs(infer), load)


def _inputs(infer: Callable[..., object]) -> tuple[str, ...]:
    if inspect.iscoroutinefunction(infer) or inspect.isgeneratorfunction(infer):
        raise InvalidConfig(f"{FILE}: infer must be a plain function, neither async nor a generator")
    parameters = inspect.signature(infer).parameters.values()
    if wrong := [parameter.name for parameter in parameters if parameter.kind not in _NAMED]:
        raise InvalidConfig(f"{FILE}: infer: {', '.join(wrong)}: each input needs a named parameter, not * or **")
    if not parameters:
        raise InvalidConfig(f"{FILE}: infer has no parameters; name each input as a parameter")
    return tuple(parameter.name for parameter in parameters)
