"""TorchServe's part of an archive's model-config.yaml, which follows from the mode: adaptive or classic."""

from collections.abc import Mapping

from deploy.archives.tasks import Mode, task_of
from deploy.models import ModelEntry
from handlers.continuous.mode import CONTINUOUS, check_mode
from handlers.errors import InvalidConfig
from torchserve_client.payloads import Json

# TorchServe's part of an adaptive archive, for keys that its file lacks. batchSize is the window: the requests that the
# worker chooses from. maxBatchDelay, in ms, is how long an idle worker waits for a second request: 1 is TorchServe's
# least, 100 its default. A second worker would starve the first.
ADAPTIVE = {CONTINUOUS: True, "batchSize": 64, "maxBatchDelay": 1, "minWorkers": 1, "maxWorkers": 1}
# TorchServe's part of a classic archive: the most requests of a batch (TorchServe's default is 1), and the ms that a
# worker waits for them.
CLASSIC = {"batchSize": 32, "maxBatchDelay": 1}


def complete_config(entry: ModelEntry) -> Json:
    """Return the entry's model-config.yaml as its archive has it; see `complete_mode`."""
    return complete_mode(entry.name, entry.config(), task_of(entry).mode)


def complete_mode(name: str, config: Mapping[str, object], default: Mode = "adaptive") -> Json:
    """Add TorchServe's keys for the mode of a model-config.yaml; its own keys stay."""
    if CONTINUOUS in config:
        raise InvalidConfig(
            f"{name}: model-config.yaml: {CONTINUOUS}: the build writes it; remove it and set the mode with handler: "
            "{scheduling: {mode: adaptive}} or classic"
        )
    mode = _read_mode(config)
    is_classic = mode == "classic" or (mode == "auto" and (default == "classic" or find_classic_cause(config)))
    defaults: Mapping[str, object] = CLASSIC if is_classic else ADAPTIVE
    if config.get("asyncCommunication"):
        # TorchServe's frontend fails with larger batches there.
        defaults = {CONTINUOUS: True} if not is_classic else {}
    completed = {**config, **{key: value for key, value in defaults.items() if config.get(key) is None}}
    if is_classic:
        return completed
    try:
        check_mode(completed)
    except InvalidConfig as error:
        raise InvalidConfig(f"{name}: {error}") from None
    return completed


def describe_defaults(entry: ModelEntry) -> str | None:
    """Describe the mode and the batch parameters that model-config.yaml leaves to the build; None if it sets both."""
    own, settings = entry.config(), complete_config(entry)
    added = [f"{key} {settings[key]}" for key in CLASSIC if own.get(key) is None and key in settings]
    mode = "adaptive" if settings.get(CONTINUOUS) is True else "classic"
    return f"{mode} mode, {', '.join(added)} by default; model-config.yaml sets others" if added else None


def find_classic_cause(config: Mapping[str, object]) -> str | None:
    """Return the line of a model-config.yaml without a mode that rules adaptive mode out."""
    if _read_mode(config) != "auto":
        return None
    if config.get("asyncCommunication"):
        return "asyncCommunication: true"
    for key in ("minWorkers", "maxWorkers"):
        workers = config.get(key)
        if isinstance(workers, int) and workers > 1:
            return f"{key}: {workers}"
    return None


def _read_mode(config: Mapping[str, object]) -> object:
    """Read the mode as it is written; parsing the settings checks it."""
    inner: object = config
    for key in ("handler", "scheduling"):
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return inner.get("mode", "auto") if isinstance(inner, Mapping) else "auto"
