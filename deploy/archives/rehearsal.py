"""A run of a user's own task in its build: a bug is a line of the user's file, before a server starts.

staged files, settings -> load -> samples -> decode, prepare -> one item, then several -> collate, forward, split
"""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.archives.custom import describe_error, import_task
from deploy.archives.tasks import Task
from deploy.models import ModelEntry
from deploy.progress import step
from handlers.config import parse
from handlers.description import describe
from handlers.errors import InvalidConfig, InvalidInput, ItemError, reason
from handlers.pipeline.task import decode, samples_of
from handlers.pipeline.values import Archive
from handlers.protocol.responses import encode

SEVERAL = 3  # items of a batch; a mistake in a dimension may pass with one or with two


def rehearse(model: ModelEntry, task: Task, folder: Path) -> None:
    """Run the task's samples alone and together; InvalidConfig names the file and line that fails."""
    try:
        with step(f"{model.name}: running its sample"):
            _run(import_task(task.path)(), model, folder)
    except Exception as error:
        hint = "; `sample` must return a payload that `decode` accepts" if isinstance(error, InvalidInput) else ""
        raise InvalidConfig(f"{model.name}: {describe_error(error, task.path, task.helpers)}{hint}") from error


def _run(task: Any, model: ModelEntry, folder: Path) -> None:
    task.config = parse(task.config_class, model.config().get("handler"))
    task.archive = Archive(folder)
    task.engine = task.load()
    shape, metadata = describe(task, model.name, model.version)
    task.archive = replace(task.archive, shape=shape, metadata=metadata)
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


def _read(hook: Any, found: Any, wanted: Sequence[Any]) -> list[Any]:
    """Return the results of a hook, one for each of `wanted`."""
    if not hasattr(found, "__len__") or len(found) != len(wanted):
        count = len(found) if hasattr(found, "__len__") else type(found).__name__
        raise _fault(hook, f"{count} results for {len(wanted)} items; expected one for each")
    for result in found:
        if isinstance(result, ItemError):
            raise _fault(hook, f"an error for the task's own sample: {result.message}")
    return [*found]


def _fault(hook: Any, words: str) -> InvalidConfig:
    code = inspect.unwrap(hook).__code__
    return InvalidConfig(f"{Path(code.co_filename).name}:{code.co_firstlineno}: {hook.__name__} returned {words}")
