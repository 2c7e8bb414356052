"""A model of a folder of archives, and the memory and files that it has."""

import asyncio
import ctypes
import gc
import resource
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.loader import NotTogether, OtherFormat, manifest_of
from torchserve_client.payloads import Json

READY, LOADING, UNLOADING, UNAVAILABLE = "READY", "LOADING", "UNLOADING", "UNAVAILABLE"  # Triton's states
AT_REQUEST, UNLOADED = "loads at its first request", "unloaded"  # reasons


class NotLoaded(Exception):
    """A model cannot be used; the message is one line."""


@dataclass(eq=False)
class Stored:
    """A model of the folder."""

    name: str
    archive: Path
    version: str = ""
    state: str = UNAVAILABLE
    reason: str = AT_REQUEST
    replica: Any = None
    running: int = 0  # requests
    used_s: float = 0.0
    written_ns: int = 0  # when the loaded archive was written
    bytes: int = 0  # of memory when it was loaded before
    is_out: bool = False  # a client has unloaded it, and only a client loads it again
    failed: tuple[float, int] | None = None  # when it did not load, and its archive's time
    loading: "asyncio.Task[None] | None" = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def describe(self) -> Json:
        """Describe a model that is not loaded as TorchServe's management API does."""
        return {
            **{
                "modelName": self.name,
                "modelVersion": self.version,
                "modelUrl": self.archive.name,
                "runtime": "python",
            },
            **{"minWorkers": 0, "maxWorkers": 1, "batchSize": 1, "maxBatchDelay": 0, "loadedAtStartup": False},
            **{"workers": [], "state": self.state, "reason": self.reason},
            "jobQueueStatus": {"remainingCapacity": 0, "pendingRequests": self.running},
        }


def resident(pid: int | None = None) -> int:
    """Return the bytes of memory of a process, by default of this one."""
    return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * resource.getpagesize()


def trim() -> None:
    """Give the memory of a model that has ended back to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def label_of(archive: Path) -> tuple[str, str]:
    """Return the name and the version of an archive's model; of a broken one only the file's name."""
    try:
        model = manifest_of(archive)["model"]
        return str(model["modelName"]), str(model.get("modelVersion") or "")
    except Exception:
        return archive.stem, ""  # its requests get the reason


def written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def size(archive: Path) -> int:
    """Return the bytes of an archive's files: about what its model needs, if it was never loaded."""
    try:
        with zipfile.ZipFile(archive) as content:
            return sum(each.file_size for each in content.infolist())
    except (OSError, zipfile.BadZipFile):
        return 0


def line(error: Exception) -> str:
    is_whole = isinstance(error, NotLoaded | NotTogether | OtherFormat)
    return (str(error) if is_whole else f"{type(error).__name__}: {error}").partition("\n")[0]
