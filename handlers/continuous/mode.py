"""Whether a model is served in adaptive mode, by its archive's model-config.yaml. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeVar

from handlers.config import HandlerConfig
from handlers.errors import InvalidConfig

# TorchServe's own setting: the frontend sends everything in flight, and the worker answers any of it.
CONTINUOUS = "continuousBatching"

AnyConfig = TypeVar("AnyConfig", bound=HandlerConfig)


def resolve_mode(config: AnyConfig, settings: Mapping[str, object]) -> AnyConfig:
    """Replace the mode `auto`: adaptive if model-config.yaml has `continuousBatching: true`, else classic."""
    if config.scheduling.mode != "auto":
        return config
    mode: Literal["classic", "adaptive"] = "adaptive" if settings.get(CONTINUOUS) is True else "classic"
    return replace(config, scheduling=replace(config.scheduling, mode=mode))


def check_mode(settings: Mapping[str, object]) -> None:
    """Check that TorchServe can work with adaptive mode by an archive's model-config.yaml."""
    problems = []
    if settings.get(CONTINUOUS) is not True:
        problems.append(f"{CONTINUOUS} must be true")
    if settings.get("asyncCommunication"):
        problems.append("asyncCommunication must be off")
    if settings.get("maxWorkers", 1) != 1:
        problems.append("maxWorkers must be 1: TorchServe's frontend starves a busy worker beside an idle one")
    if problems:
        raise InvalidConfig(f"handler: scheduling: mode: adaptive: {'; '.join(problems)}")
