"""Which mode an archive's worker runs in, and what TorchServe is told for it.

model-config.yaml -> packed -> the same, with what adaptive mode needs of TorchServe where the file leaves it open

An archive whose file leaves the mode open has its task's (deploy.build.tasks.Task.mode): adaptive where that was
measured to serve at least as well, classic where an item costs next to nothing beside the way to it, or nobody knows.
It stays classic, too, where its file asks for what one worker that chooses cannot give: several workers, or another
protocol; `why_classic` says so.
"""

from collections.abc import Mapping
from typing import Any

from deploy.build.tasks import Mode, task_of
from deploy.models import Model
from handlers.batching.policy import CONTINUOUS, check_mode
from handlers.errors import InvalidConfig

# TorchServe's part of an adaptive archive, where its file does not say. batchSize is the window: the requests that the
# worker sees and chooses from. maxBatchDelay is what an idle worker waits for a second request, in ms; TorchServe's own
# default is 100, and 1 is the least it takes. Beside an idle worker a busy one would starve.
ADAPTIVE = {CONTINUOUS: True, "batchSize": 64, "maxBatchDelay": 1, "minWorkers": 1, "maxWorkers": 1}


def archived(model: Model) -> dict[str, Any]:
    """Give a model's configuration as its archive has it; see `packed`."""
    return packed(model.name, model.config(), task_of(model).mode)


def packed(name: str, config: Mapping[str, Any], default: Mode = "adaptive") -> dict[str, Any]:
    """Complete a model-config.yaml for the mode that it asks for, or may have.

    Args:
        name: the model's, for the error.
        config: as its owner wrote it.
        default: the mode where the file says nothing of it.

    Raises:
        InvalidConfig: it says `mode: adaptive`, and what TorchServe cannot serve so.
    """
    asked = _mode(config)
    mode = default if asked == "auto" and config.get(CONTINUOUS) is None else asked
    if mode == "classic" or why_classic(config) is not None:
        return dict(config)
    completed = {**config, **{key: value for key, value in ADAPTIVE.items() if config.get(key) is None}}
    try:
        check_mode(completed)
    except InvalidConfig as error:
        raise InvalidConfig(f"{name}: {error}") from None
    return completed


def why_classic(config: Mapping[str, Any]) -> str | None:
    """Say what in a model-config.yaml that leaves the mode open keeps it classic; None where nothing does."""
    if _mode(config) != "auto":
        return None
    if config.get(CONTINUOUS) is False:
        return f"{CONTINUOUS}: false"
    if config.get("asyncCommunication"):
        return "asyncCommunication: true"
    for key in ("minWorkers", "maxWorkers"):
        workers = config.get(key)
        if isinstance(workers, int) and workers > 1:
            return f"{key}: {workers}"
    return None


def _mode(config: Mapping[str, Any]) -> Any:
    """What the file says of the mode; who parses `handler:` finds out whether that is one."""
    inner: Any = config
    for key in ("handler", "scheduling"):
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return inner.get("mode", "auto") if isinstance(inner, Mapping) else "auto"
