"""Durations of micro-batches on the ways to run a model, and the file that stores them."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from handlers.engines import available_threads
from handlers.engines.compilation import cache_dir
from handlers.engines.cores import PROCESSORS
from handlers.pipeline.task import Task

Seeds = list[tuple[int, float]]  # (padded tokens, seconds) of micro-batches, one item first


class Candidate(NamedTuple):
    """One way to run a model: its precision, "" if the engine has only one, and its number of streams."""

    precision: str
    streams: int

    def __str__(self) -> str:
        words = [self.precision] if self.precision else []
        return " ".join([*words, f"in {self.streams} streams" if self.streams > 1 else "whole"])


class Measurement(NamedTuple):
    """Micro-batches on the idle whole engine, and, if measured, on each stream beside the others."""

    whole: Seeds
    stream: Seeds


def path_for(task: Task, key: str) -> Path:
    """Return the file for this archive, processor, GPU, engine and settings."""
    processor = ""
    with suppress(OSError):
        lines = PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
        # Virtual machines show different flags of one processor.
        processor = "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    if task.device.type == "cuda":
        import torch  # noqa: PLC0415 - a worker on OpenVINO has no GPU

        processor += torch.cuda.get_device_name(task.device)
    identity = [task.fingerprint, key, processor, available_threads(0), *map(_version, ("openvino", "torch"))]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    return cache_dir(task.model_dir) / f"measured-{name}.json"


def _version(package: str) -> str:
    """Return the version of a package; "" without it, as in an environment of one engine."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@contextmanager
def lock(path: Path | None) -> Iterator[None]:
    """Let one worker at a time measure for this file; without one, or if it cannot be written, none waits."""
    with ExitStack() as stack:
        if path is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                # The kernel releases the lock when the process ends.
                fcntl.flock(stack.enter_context(path.with_suffix(".lock").open("w")), fcntl.LOCK_EX)
        yield


def write(path: Path, content: Any) -> None:
    """Store JSON; no effect in a folder that cannot be written to."""
    with suppress(OSError):
        # Another server may read the file now: replace it in one step.
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps(content), encoding="utf-8")
        own.replace(path)


def load(path: Path | None) -> Any:
    """Return the stored JSON; None if the file is missing or invalid."""
    with suppress(OSError, ValueError, RecursionError):
        return path and json.loads(path.read_bytes())
    return None


def read(path: Path | None) -> dict[Candidate, Measurement]:
    """Return the stored measurements; none if the file is missing or invalid."""
    try:
        return {
            Candidate(str(precision), int(streams)): Measurement(_check(whole), _check(stream))
            for (precision, streams), (whole, stream) in load(path) or ()
            if whole
        }
    except (ValueError, TypeError):
        return {}


def _check(values: Any) -> Seeds:
    for tokens, seconds in values:
        if type(tokens) is not int or type(seconds) is not float or not (tokens > 0 and 0 < seconds < inf):
            raise ValueError("not a measurement")
    return [(tokens, seconds) for tokens, seconds in values]
