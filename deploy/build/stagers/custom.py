"""Stages what a task of the user's wants in its archive, and runs its file once, as a worker will.

beside the configuration, what `staged_files` names  -> under the same paths
the weights that the list or --weights names, if any -> checkpoint/
"""

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

from deploy.build.hub import open_checkpoint
from deploy.build.sources import CODE, Source, WeightsUnavailable
from deploy.build.tasks import find_staged_files, task_of
from deploy.models import Engine, ModelEntry
from handlers.archive_files import CHECKPOINT
from handlers.base import BatchHandler
from handlers.config import parse
from handlers.errors import InvalidConfig

# A class cannot be served without these attributes; Python itself knows which methods it lacks.
STATED = ("config_class", "inputs")


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:  # noqa: ARG001 - its `load` decides
    """Copy what the task names, after its class and its settings are found to be sound.

    Raises:
        WeightsUnavailable: the weights cannot be had.
        InvalidConfig: the class cannot be served, the configuration is wrong, or a file is missing.
    """
    task = task_of(model)
    found = task_class(task.path)
    config = parse(found.config_class, model.config().get("handler"))
    for pattern in task.files:
        if not any(model.folder.glob(pattern)):
            raise InvalidConfig(f"{model.name}: staged_files: no {pattern} in {model.folder.name}/")
    for name, path in find_staged_files(model, task).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    is_code_trusted = bool(getattr(config, "trust_remote_code", False))
    _stage_weights(model, origin, folder / CHECKPOINT, with_code=is_code_trusted)


def _stage_weights(model: ModelEntry, origin: Source, folder: Path, *, with_code: bool) -> None:
    if origin.kind == "none":
        return
    if folder.exists():
        raise InvalidConfig(f"{model.name}: staged_files: {CHECKPOINT}/ is where the weights go; use another name")
    if origin.kind == "hub":
        with open_checkpoint(model, origin, with_code=with_code) as source:
            shutil.copytree(source, folder)
    elif origin.kind == "folder":
        code = None if with_code else shutil.ignore_patterns(f"*{CODE}")
        shutil.copytree(origin.location, folder, ignore=code)
    elif origin.kind == "file":
        folder.mkdir()
        shutil.copy(origin.location, folder)
    else:
        raise WeightsUnavailable(f"{model.name}: no {origin.kind} weights for {model.handler}; give --weights PATH")


def task_class(path: Path) -> type[BatchHandler[Any, Any]]:
    """Import a task's file under its own name, and take the class that TorchServe will.

    Raises:
        InvalidConfig: it cannot be imported, or what it holds cannot be served.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidConfig(f"{path.name}: it cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise InvalidConfig(f"{path.name}: it cannot be imported: {type(error).__name__}: {reason}") from error
    finally:
        del sys.modules[path.stem]
    if hasattr(module, "handle"):
        raise InvalidConfig(f"{path.name}: `handle` at its top level would be served instead of the class; rename it")
    # As ts.model_loader counts them: a named tuple is one too.
    classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == path.stem]
    if len(classes) != 1:
        names = f" ({', '.join(each.__name__ for each in classes)})" if classes else ""
        raise InvalidConfig(
            f"{path.name}: it holds {len(classes) or 'no'} class{'es' if classes else ''}{names}; a task's file holds "
            "exactly one, on BatchHandler; others may stand inside that one"
        )
    (found,) = classes
    if not issubclass(found, BatchHandler):
        raise InvalidConfig(f"{path.name}: {found.__name__} is no BatchHandler")
    lacking = sorted(found.__abstractmethods__) + [name for name in STATED if not hasattr(found, name)]
    if lacking:
        raise InvalidConfig(f"{path.name}: {found.__name__} lacks {', '.join(lacking)}")
    return found
