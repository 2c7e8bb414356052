"""What warm-up measured, kept in a file, so that a worker that comes back need not measure it again.

    archive's fingerprint, processor, engine, versions -> name of the file -> (padded tokens, seconds) by engine

The folder is CACHE_DIR's, where that is set; otherwise it lies in the model's own folder, which TorchServe keeps while
the model is registered. What is not what it should be is measured anew: a file is read as numbers and nothing else.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

from handlers.engines import available_threads

Seeds = list[tuple[int, float]]

# Where processors say what they are called, on Linux.
PROCESSORS = Path("/proc/cpuinfo")


def folder_of(model_dir: Path) -> Path:
    """Give the folder of a model's caches; it need not exist."""
    configured = os.environ.get("CACHE_DIR")
    return Path(configured) if configured else model_dir / ".cache"


class Measurements:
    """What one archive's engine takes on this machine."""

    def __init__(self, fingerprint: str | None, engine: str, folder: Path) -> None:
        """Read what is known.

        Args:
            fingerprint: says which archive it is; without one, nothing is remembered.
            engine: what measures differ by, on one machine: description, threads, streams, sizes.
            folder: where the files are; it is made where it is missing.
        """
        identity = [fingerprint, engine, _processor(), available_threads(0), *map(version, ("openvino", "torch"))]
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        self._path = folder / f"measurements-{name}.json" if fingerprint else None
        self._known = _read(self._path) if self._path else {}

    def get(self, name: str) -> Seeds:
        """Give what was measured of one engine or stream; nothing where it is not known."""
        return self._known.get(name, [])

    def put(self, name: str, seeds: Sequence[tuple[int, float]]) -> None:
        """Remember a measure; a folder that cannot be written to forgets it."""
        self._known[name] = list(seeds)
        if self._path is None:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Whole or not at all: another server may read it now.
            own = self._path.with_suffix(f".{os.getpid()}")
            own.write_text(json.dumps(self._known), encoding="utf-8")
            own.replace(self._path)


def _processor() -> str:
    try:
        lines = PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    # Processors of one name differ by what a virtual machine shows of them.
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def _read(path: Path) -> dict[str, Seeds]:
    try:
        known = json.loads(path.read_bytes())
        return {str(name): [_seed(seed) for seed in seeds] for name, seeds in known.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _seed(value: Any) -> tuple[int, float]:
    tokens, seconds = value
    if type(tokens) is not int or type(seconds) is not float or tokens < 1 or not (isfinite(seconds) and seconds > 0):
        raise ValueError("not a measure")
    return tokens, seconds
