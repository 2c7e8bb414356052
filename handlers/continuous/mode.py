"""Whether a model is served in adaptive mode, by its archive's model-config.yaml. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

from handlers.config import HandlerConfig
from handlers.errors import InvalidConfig

# TorchServe's own setting: the worker is sent everything in flight, and answers what it will.
CONTINUOUS = "continuousBatching"

AnyConfig = TypeVar("AnyConfig", bound=HandlerConfig)


def with_mode(config: AnyConfig, settings: Mapping[str, Any]) -> AnyConfig:
    """Return settings with a mode if an archive leaves it open: adaptive if its model-config.yaml is continuous."""
    if config.scheduling.mode != "auto":
        return config
    mode: Literal["classic", "adaptive"] = "adaptive" if settings.get(CONTINUOUS) is True else "classic"
    return replace(config, scheduling=replace(config.scheduling, mode=mode))


def check_mode(settings: Mapping[str, Any]) -> None:
    """Check that an archive's model-config.yaml lets TorchServe work with adaptive mode.

    Raises:
        InvalidConfig: it does not; the message lists every problem.
    """
    problems = []
    if settings.get(CONTINUOUS) is not True:
        problems.append(f"{CONTINUOUS}: true is needed beside it")
    if settings.get("asyncCommunication"):
        problems.append("asyncCommunication must be off")
    if settings.get("maxWorkers", 1) != 1:
        problems.append("maxWorkers must be 1: TorchServe's frontend starves a busy worker beside an idle one")
    if problems:
        raise InvalidConfig(f"handler: scheduling: mode: adaptive: {'; '.join(problems)}")
