"""Whether a model is served in adaptive mode, by its archive's model-config.yaml, and by one worker.

An adaptive model has one worker: it claims the model while it loads, and fails to load if another worker has it.
TorchServe's frontend polls for all workers of a model under one lock, which an idle worker holds until a request comes.
Meanwhile a busy worker could not deliver its responses. The management API accepts any number of workers.
"""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
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


GONE_S = 5.0  # seconds within which the process of a replaced worker must have ended
POLL_S = 0.1  # seconds between two attempts

_claims: dict[str, socket.socket] = {}  # claims of this process by name; the kernel releases them when it ends


def claim_worker(model: str, version: str | None) -> None:
    """Claim to be the only worker of a model, if TorchServe's frontend has started this process."""
    frontend = os.getppid()
    try:
        is_frontend = Path(f"/proc/{frontend}/comm").read_text().strip() == "java"
    except OSError:
        return  # other systems than Linux have no abstract sockets
    if is_frontend:
        claim(f"torchserve {frontend} {model} {version}", GONE_S)


def claim(name: str, gone_s: float) -> None:
    """Claim a name on this machine as an abstract socket, which is free again when this process has ended."""
    if name in _claims:
        return
    deadline_s = time.monotonic() + gone_s
    while True:
        claimed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claimed.bind(b"\0" + name.encode()[:107])  # the kernel accepts 107 bytes
        except OSError:
            claimed.close()
            if time.monotonic() > deadline_s:
                raise InvalidConfig(
                    "another worker serves this model, and adaptive mode has one: scale it to 1; to use more of a "
                    "machine, start several nodes (make serve NODES=4) or set scheduling: mode: classic"
                ) from None
            time.sleep(POLL_S)
        else:
            _claims[name] = claimed
            return
