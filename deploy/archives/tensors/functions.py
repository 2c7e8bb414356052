"""Stages a model that is a Python function: infer.py, and the other files of its folder.

files -> function/ -> imported, and run as a worker does if the configuration describes its inputs
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.archives.tensors.files import ModelFile
from deploy.archives.tensors.proof import NotRun, prove
from deploy.archives.tensors.samples import make_rows
from deploy.models import ModelEntry
from handlers.engines.function import FOLDER, FunctionEngine, load_function
from handlers.errors import InvalidConfig, reason
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import DeclaredSignature, Tensor, merge_signature


def stage_function(model: ModelEntry, file: ModelFile, config: TensorsConfig, folder: Path) -> None:
    """Copy the function and its files; InvalidConfig if it cannot be imported or loaded, or does not batch."""
    target = folder / FOLDER
    names = file.beside or (Path(file.path.name),)
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.path.parent / name, target / name)
    with _forget_imports(target):
        _run(model, target, config)
    _remove_others(target, names)


def _run(model: ModelEntry, folder: Path, config: TensorsConfig) -> None:
    function = load_function(folder)
    signature = merge_signature(DeclaredSignature(tuple(Tensor(name) for name in function.inputs)), config)
    if not make_rows(signature, config):
        return
    try:
        if function.load is not None:
            function.load(folder, "cpu")
    except Exception as error:
        raise InvalidConfig(f"load failed: {reason(error)}") from error
    try:
        prove(FunctionEngine(function.infer, function.inputs).run, signature, config)
    except NotRun as error:
        print(f"{model.name}: not shown to batch: {error}")  # it may reject numbers that its clients never send


@contextmanager
def _forget_imports(folder: Path) -> Iterator[None]:
    """Forget the modules of a folder afterwards, since the next function's may have equal names."""
    path = [*sys.path]
    try:
        yield
    finally:
        sys.path[:] = path
        for name, module in [*sys.modules.items()]:
            if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
                del sys.modules[name]


def _remove_others(folder: Path, names: Sequence[Path]) -> None:
    """Remove the files that running the function wrote, such as compiled Python."""
    kept = {folder / name for name in names}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif path.is_file() and path not in kept:
            path.unlink()
