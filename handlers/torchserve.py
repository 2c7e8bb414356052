"""The border to TorchServe: its base class, its metrics and the heap of its frontend. The only importer of `ts`.

Recorder, HeapFile -> reporter -> lines on stdout, which the frontend parses

The heap is read from /tmp/hsperfdata_USER/PID, which every HotSpot JVM keeps in shared memory.
"""

import logging
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from handlers.metrics import GAUGES, Recorder, Reporter, Sample


@contextmanager
def _blocked_imports(*modules: str, importer: str) -> Iterator[None]:
    """Let imports of modules fail at once, by None in sys.modules, and without the importer's warnings of it."""
    blocked = [module for module in modules if module not in sys.modules]
    logger = logging.getLogger(importer)
    level = logger.level
    logger.setLevel(logging.ERROR)
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]
    try:
        yield
    finally:
        logger.setLevel(level)
        for module in blocked:
            del sys.modules[module]


# TorchServe's module tries both, and nothing here uses them. The first imports torch._dynamo and torch._inductor, which
# takes three seconds of every worker's start.
with _blocked_imports("openvino.torch", "onnxruntime", importer="ts.torch_handler.base_handler"):
    from ts.metrics.metric_cache_errors import MetricsCacheKeyError
    from ts.metrics.metric_type_enum import MetricTypes
    from ts.torch_handler.base_handler import BaseHandler as BaseHandler  # noqa: PLC0414

# HotSpot's counters, version 2.0 (perfMemory.hpp). The head after the magic number: byte order, version, bytes used,
# offset of the first entry, number of entries.
MAGIC, VERSION, LITTLE_ENDIAN = 0xCAFEC0C0, (2, 0), 1
HEAD = struct.Struct("<BBBBiiqii")
# An entry: its length, offset of the name, elements of a vector, type, offset of the value.
ENTRY = struct.Struct("<iiiBBBBi")
LONG = struct.Struct("<q")
# A header says how long the file is; no JVM makes it larger than this unless told.
FILE_BYTES = 1 << 20
USED, MOST = "sun.gc.generation.1.space.0.used", "sun.gc.generation.1.maxCapacity"


def reporter(context: Any, version: str | None) -> Reporter:
    """Return what writes a model's metrics and the frontend's heap with TorchServe's metrics, once it is started."""
    # TorchServe reads no empty label.
    labels = (context.model_name, version or "unknown")
    # The frontend has started this process.
    heap = partial(_emit_heap, context.metrics, HeapFile(os.getppid()))
    return Reporter(Recorder(), partial(_emit, context.metrics, labels), beside=heap)


def _emit(cache: Any, model: tuple[str, str], sample: Sample) -> None:
    name = sample.counter.name
    try:
        counter = cache.get_metric(name, MetricTypes.COUNTER)
    except MetricsCacheKeyError:  # the server runs with a metrics file of its own
        names = ["ModelName", "ModelVersion", *sample.counter.labels]
        counter = cache.add_metric_to_cache(name, "count", names, MetricTypes.COUNTER)
    counter.add_or_update(sample.value, [*model, *sample.labels])


def _emit_heap(cache: Any, heap_file: "HeapFile") -> None:
    """Write how full TorchServe's heap is, where its metrics file declares that and Java's counters can be read."""
    heap = heap_file.read()
    if heap is None:
        return
    for gauge, value in zip(GAUGES, heap, strict=True):
        try:
            cache.get_metric(gauge, MetricTypes.GAUGE).add_or_update(value, ["Host"])
        except MetricsCacheKeyError:  # the server runs with a metrics file of its own
            return


class Heap(NamedTuple):
    """The old generation, in bytes: used after the last collection, and at most.

    What fills the heap ends up there, bodies of a MiB and more at once.
    """

    used: int
    most: int


class HeapFile:
    """The counters of one JVM; a read takes two reads of eight bytes."""

    def __init__(self, process: int, temporary: Path = Path("/tmp")) -> None:  # noqa: S108  # HotSpot's own choice
        """Find the file of a process; without one, or with another layout, `read` returns None."""
        self._path: Path | None = None
        self._offsets = (0, 0)
        for path in temporary.glob(f"hsperfdata_*/{process}"):
            try:
                # Any user may write below /tmp.
                if path.stat().st_uid != os.getuid():
                    continue
                with path.open("rb") as file:
                    found = _offsets(file.read(FILE_BYTES))
            except (OSError, struct.error, ValueError):
                continue
            if USED in found and MOST in found:
                self._path, self._offsets = path, (found[USED], found[MOST])

    def read(self) -> Heap | None:
        """Read the counters; None where there are none, or the process has ended."""
        if self._path is None:
            return None
        try:
            with self._path.open("rb", buffering=0) as file:
                used, most = (LONG.unpack(os.pread(file.fileno(), LONG.size, at))[0] for at in self._offsets)
        except (OSError, struct.error):
            return None
        return Heap(used, most)


def _offsets(content: bytes) -> dict[str, int]:
    """Return where the value of each numeric counter lies, by the counter's name.

    Raises:
        struct.error, ValueError: the content has another layout.
    """
    order, major, minor, _, _, _, _, at, count = HEAD.unpack_from(content, 4)
    if int.from_bytes(content[:4], "big") != MAGIC or order != LITTLE_ENDIAN or (major, minor) != VERSION:
        raise ValueError("no counters of HotSpot 2.0")
    found = {}
    for _ in range(count):
        length, name, elements, kind, _, _, _, value = ENTRY.unpack_from(content, at)
        if length <= 0:
            raise ValueError("an entry without a length")
        if kind == ord("J") and elements == 0:
            found[content[at + name : content.index(0, at + name)].decode("ascii", "replace")] = at + value
        at += length
    return found


def device(gpu_id: int | None) -> torch.device:
    """Return the GPU that TorchServe assigned to this worker, or the CPU."""
    if gpu_id is not None and torch.cuda.is_available():
        return torch.device("cuda", int(gpu_id))
    return torch.device("cpu")
