"""A task on an archive's files, in the builder's process: as the archive's worker would have it, on the CPU.

folder of an archive's files, its settings -> the task's class -> load -> hooks to call
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from deploy.build.tasks import imported_quietly


def task_class(handler: str) -> Any:
    """Find the class of a built-in task by the task's name."""
    # TorchServe's base class comes with it, and tells of what nobody asked for.
    module = imported_quietly(f"handlers.tasks.{handler}")
    classes = (each for each in vars(module).values() if isinstance(each, type))
    (found,) = (each for each in classes if each.__module__ == module.__name__)
    return found


def loaded(handler: str, folder: Path, config: Any) -> Any:
    """Load a built-in task.

    Args:
        handler: the task's name.
        folder: an archive's files, or those of them that the task loads.
        config: the archive's settings.

    Raises:
        InvalidConfig: the files do not fit the settings.
    """
    task = task_class(handler)()
    # One stream is as good as another, and needs no trial.
    streams = 1 if config.scheduling.streams == "auto" else config.scheduling.streams
    task.config = replace(config, scheduling=replace(config.scheduling, streams=streams))
    task.model_dir, task.device, task.fingerprint = folder, torch.device("cpu"), None
    task.longest_run_s = math.inf
    task.engine = task.load()
    return task
