"""Stages a user's own task: imports its file, as a worker does, copies its files, and runs it on its samples.

files beside the configuration that `staged_files` names -> their paths in the archive
the weights of the list or --weights, if any             -> checkpoint/
staged files, settings -> load -> samples -> decode, prepare -> one item, then several -> collate, forward, split
"""

import importlib.util
import inspect
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.archives.requirements import install
from deploy.archives.sources import CODE, Source, WeightsUnavailable
from deploy.archives.task_file import check_reads, find_helpers
from deploy.archives.tasks import Task, find_staged_files, task_of
from deploy.models import Engine, ModelEntry
from deploy.progress import step
from handlers.archive_files import CHECKPOINT
from handlers.base import BatchHandler
from handlers.config import HandlerConfig, parse
from handlers.description import describe
from handlers.errors import InvalidConfig, InvalidInput, ItemError, reason
from handlers.pipeline.task import Task as Served
from handlers.pipeline.task import decode, samples_of
from handlers.pipeline.values import FORMERLY_READ, Archive
from handlers.protocol.responses import encode
from torchserve_client.files import copy_folder

SEVERAL = 3  # items of a batch; a mistake in a dimension may pass with one or with two
STATED = ("config_class", "inputs")  # the attributes that a class needs; abstract methods are listed by Python itself


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:  # noqa: ARG001 - `load` chooses
    """Check the class and its settings, and copy the files and weights."""
    task, config = task_of(model), check(model)
    for pattern in task.files:
        if not any(model.folder.glob(pattern)):
            raise InvalidConfig(f"{model.name}: staged_files: no {pattern} in {model.folder.name}/")
    for name, path in {**find_staged_files(model, task), **task.helpers}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    is_code_trusted = bool(getattr(config, "trust_remote_code", False))
    _stage_weights(model, origin, folder / CHECKPOINT, with_code=is_code_trusted)


def check(model: ModelEntry) -> HandlerConfig:
    """Import a model's task and return its settings; InvalidConfig names what cannot be served."""
    return parse(import_task(task_of(model).path).config_class, model.config().get("handler"))


def _stage_weights(model: ModelEntry, origin: Source, folder: Path, *, with_code: bool) -> None:
    if origin.kind == "none":
        return
    if folder.exists():
        raise InvalidConfig(f"{model.name}: staged_files: {CHECKPOINT}/ is the folder of the weights; use another name")
    if origin.kind == "hub":
        from deploy.archives.hub import open_checkpoint  # noqa: PLC0415 - it imports transformers, which takes seconds

        with open_checkpoint(model, origin, with_code=with_code) as source:
            copy_folder(source, folder)
    elif origin.kind == "folder":
        copy_folder(Path(origin.location), folder, *(() if with_code else (f"*{CODE}",)))
    elif origin.kind == "file":
        folder.mkdir()
        shutil.copy(origin.location, folder)
    else:
        raise WeightsUnavailable(f"{model.name}: no {origin.kind} weights for {model.handler}; use --weights PATH")


def import_task(path: Path) -> type[BatchHandler[Any, Any]]:
    """Import a task's file under its own name, and return the class that TorchServe will find."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidConfig(f"{path.name}: it cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    # For the modules beside the file, behind all installed ones.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        line = describe_error(error, path, find_helpers(path))
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.partition(".")[0]
            line += f"; add its package to `requirements:` of the list, and install it, such as {install(package)}"
        raise InvalidConfig(f"{path.name}: it cannot be imported: {line}") from error
    finally:
        del sys.modules[path.stem]
    if hasattr(module, "handle"):
        raise InvalidConfig(
            f"{path.name}: TorchServe would call `handle` at its top level instead of the class; rename it"
        )
    # As ts.model_loader counts them: a named tuple is a class, too.
    classes = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == path.stem]
    if len(classes) != 1:
        names = f" ({', '.join(each.__name__ for each in classes)})" if classes else ""
        raise InvalidConfig(
            f"{path.name}: it has {len(classes) or 'no'} class{'es' if classes else ''}{names}; a task's file needs "
            "exactly one, on BatchHandler; nest others inside that one"
        )
    (found,) = classes
    if not issubclass(found, BatchHandler):
        raise InvalidConfig(f"{path.name}: {found.__name__} is not a BatchHandler")
    lacking = sorted(found.__abstractmethods__) + [name for name in STATED if not hasattr(found, name)]
    if lacking:
        raise InvalidConfig(f"{path.name}: {found.__name__} lacks {', '.join(lacking)}")
    check_reads(path, FORMERLY_READ)
    return found


def describe_error(error: BaseException, path: Path, helpers: Mapping[str, Path]) -> str:
    """Return an error in one line, with the last line of a user's files that it passed."""
    files = {path.absolute(): path.name, **{file.absolute(): name for name, file in helpers.items()}}
    for each in (error, error.__cause__, error.__context__):
        frames = traceback.extract_tb(each.__traceback__) if each else ()
        places = [
            f"{files[at]}:{frame.lineno}: " for frame in frames if (at := Path(frame.filename).absolute()) in files
        ]
        if places:
            break
    words = str(error) if isinstance(error, InvalidConfig) else reason(error)
    return f"{places[-1] if places else ''}{words}"


def rehearse(model: ModelEntry, task: Task, folder: Path) -> None:
    """Run the task's samples alone and together; InvalidConfig names the file and line that fails."""
    try:
        with step(f"{model.name}: running its sample"):
            _run(import_task(task.path)(), model, folder)
    except Exception as error:
        hint = "; `sample` must return a payload that `decode` accepts" if isinstance(error, InvalidInput) else ""
        raise InvalidConfig(f"{model.name}: {describe_error(error, task.path, task.helpers)}{hint}") from error


def _run(task: Served, model: ModelEntry, folder: Path) -> None:
    task.config = parse(task.config_class, model.config().get("handler"))
    task.archive = Archive(folder)
    task.engine = task.load()
    task.archive = replace(task.archive, described=describe(task, model.name, model.version))
    for payload in samples_of(task):
        for batch in ([payload], [payload] * SEVERAL):
            items = _read(task.prepare, task.prepare([decode(task, each) for each in batch]), batch)
            for item in items:
                task.cost(item)
            outputs = task.forward(task.collate(items), items)
            for result in _read(task.split, task.split(outputs, items), items):
                try:
                    encode(result)
                except Exception as error:
                    raise _fault(task.split, f"a result that JSON cannot represent: {reason(error)}") from None


def _read(hook: Callable[..., object], found: Sequence[Any], wanted: Sequence[object]) -> list[Any]:
    """Return the results of a hook, one for each of `wanted`."""
    if not hasattr(found, "__len__") or len(found) != len(wanted):
        count = len(found) if hasattr(found, "__len__") else type(found).__name__
        raise _fault(hook, f"{count} results for {len(wanted)} items; expected one for each")
    for result in found:
        if isinstance(result, ItemError):
            raise _fault(hook, f"an error for the task's own sample: {result.message}")
    return [*found]


def _fault(hook: Callable[..., object], words: str) -> InvalidConfig:
    code = inspect.unwrap(hook).__code__
    return InvalidConfig(f"{Path(code.co_filename).name}:{code.co_firstlineno}: {hook.__name__} returned {words}")
