"""What micro-batches took on the ways to run a model, and where that is remembered.

Measurements are kept in a file, in the folder CACHE_DIR or else in the model's own folder, which TorchServe keeps while
the model is registered. A file with anything but measurements in it is ignored.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from handlers.engines import available_threads
from handlers.pipeline.task import Task

# Linux describes processors there.
PROCESSORS = Path("/proc/cpuinfo")

# What micro-batches took: (padded tokens, seconds), one item first.
Seeds = list[tuple[int, float]]


class Candidate(NamedTuple):
    """One way to run a model: its precision, empty where the engine has only one, and its number of streams."""

    precision: str
    streams: int

    def __str__(self) -> str:
        words = [self.precision] if self.precision else []
        return " ".join([*words, f"in {self.streams} streams" if self.streams > 1 else "whole"])


class Measured(NamedTuple):
    """What micro-batches took with the engine to themselves, and on each stream beside the others, if measured."""

    whole: Seeds
    stream: Seeds


def path_of(task: Task, key: str) -> Path:
    """Return the file for this archive, processor, engine and settings."""
    processor = ""
    with suppress(OSError):
        lines = PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
        # Processors of one name differ by what a virtual machine shows of them.
        processor = "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    identity = [task.fingerprint, key, processor, available_threads(0), *map(version, ("openvino", "torch"))]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    configured = os.environ.get("CACHE_DIR")
    return (Path(configured) if configured else task.model_dir / ".cache") / f"measured-{name}.json"


@contextmanager
def held(path: Path | None) -> Iterator[None]:
    """Wait until no other worker measures for this file, and keep others waiting meanwhile.

    Workers of a model that start together would measure each other's load and come to different choices, and so answer
    in different precisions. Without a file, or in a folder that cannot be written to, none waits.
    """
    with ExitStack() as stack:
        if path is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                # The lock goes with its process, however that ends.
                fcntl.flock(stack.enter_context(path.with_suffix(".lock").open("w")), fcntl.LOCK_EX)
        yield


def write(path: Path, known: Mapping[Candidate, Measured]) -> None:
    """Remember what was measured; a folder that cannot be written to forgets it."""
    with suppress(OSError):
        # Whole or not at all: another server may read it now.
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps(list(known.items())), encoding="utf-8")
        own.replace(path)


def read(path: Path | None) -> dict[Candidate, Measured]:
    """Return what a file remembers; nothing without one, or where it is not there or holds anything else."""
    if path is None:
        return {}
    try:
        return {
            Candidate(str(precision), int(streams)): Measured(_seeds(whole), _seeds(stream))
            for (precision, streams), (whole, stream) in json.loads(path.read_bytes())
            if whole
        }
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def _seeds(values: Any) -> Seeds:
    for tokens, seconds in values:
        if type(tokens) is not int or type(seconds) is not float or not (tokens > 0 and 0 < seconds < inf):
            raise ValueError("not a measurement")
    return [(tokens, seconds) for tokens, seconds in values]
