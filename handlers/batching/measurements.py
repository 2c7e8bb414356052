"""Durations of micro-batches on the ways to run a model, and the file that stores them."""

import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from handlers.engines import available_threads
from handlers.engines.compilation import APPEND, READ, cache_dir, open_own
from handlers.engines.cores import PROCESSORS
from handlers.pipeline.task import Task

LOCK_S = 30.0  # seconds to wait for another worker's measurements; then both measure
CHECK_S = 0.05  # seconds between two looks at its lock
MOST_BYTES = 1 << 20  # of a file of measurements

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
    if task.archive.device.type == "cuda":
        import torch  # noqa: PLC0415 - a worker on OpenVINO has no GPU

        processor += torch.cuda.get_device_name(task.archive.device)
    identity = [task.archive.fingerprint, key, processor, available_threads(0), *map(_version, ("openvino", "torch"))]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    return cache_dir(task.archive.model_dir) / f"measured-{name}.json"


def _version(package: str) -> str:
    """Return the version of a package; "" without it, as in an environment of one engine."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@contextmanager
def lock(path: Path | None) -> Iterator[None]:
    """Let one worker at a time measure for this file; without one, or if it cannot be locked in LOCK_S, none waits."""
    with ExitStack() as stack:
        if path is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                # The kernel releases the lock when the process ends.
                _wait_for(stack.enter_context(open_own(path.with_suffix(".lock"), APPEND)))
        yield


def _wait_for(file: BinaryIO) -> None:
    ends_s = time.monotonic() + LOCK_S
    while time.monotonic() < ends_s:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(CHECK_S)


def write(path: Path, content: object) -> None:
    """Store JSON; no effect in a folder that cannot be written to."""
    with suppress(OSError):
        # Another server may read the file now: replace it in one step.
        number, own = tempfile.mkstemp(prefix=f"{path.stem}.", dir=path.parent)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                os.fchmod(number, 0o644)  # the next start may be another user's
                json.dump(content, file)
            Path(own).replace(path)
        except BaseException:
            Path(own).unlink()
            raise


def load(path: Path | None) -> Any:
    """Return the stored JSON; None if the file is missing or invalid."""
    with suppress(OSError, ValueError, RecursionError):
        if path is not None:
            with open_own(path, READ) as file:
                return json.loads(file.read(MOST_BYTES))
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
