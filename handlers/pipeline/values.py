"""A task's archive, as a worker loads it, and the inputs and results of a task, as it states them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from handlers import archive_files
from handlers.aliases import Array
from handlers.config import HandlerConfig
from handlers.engines import CPU, Device
from handlers.errors import InvalidConfig
from handlers.pipeline.micro_batches import OVERHEAD, Overhead
from handlers.protocol.fields import Fields
from handlers.protocol.metadata import Metadata, TensorMetadata
from handlers.protocol.output_tensors import Model, OutputTensors, documents
from handlers.protocol.requests import Items
from handlers.protocol.responses import Piped
from handlers.protocol.retrieval import Api
from handlers.protocol.rows import Shape


@dataclass(frozen=True)
class Archive:
    """An archive, and how this worker serves it."""

    model_dir: Path  # the folder of its files
    device: Device = CPU  # of the engine
    longest_run_s: float = inf  # most seconds of one run, for engines that can stop one
    fingerprint: str | None = None  # hash of everything that it was made from; None if unknown
    # Known when the task is loaded: the requests that it takes with its metadata, and its settings with the options of
    # an item that has none.
    described: tuple[Shape, Metadata] | None = None
    defaults: tuple[object, object] = (None, None)

    @property
    def shape(self) -> Shape:
        return self._known[0]

    @property
    def metadata(self) -> Metadata:
        return self._known[1]

    @property
    def _known(self) -> tuple[Shape, Metadata]:
        if self.described is None:
            raise RuntimeError("the archive's shape and metadata are known when `load` has ended")
        return self.described

    @property
    def checkpoint_dir(self) -> Path:
        """The folder of the checkpoint, or of other weights that the list or `--weights` names."""
        return archive_files.find_checkpoint(self.model_dir)

    def uses_torch(self, config: HandlerConfig) -> bool:
        """Return whether `load` must return a torch engine: with `engine: torch`, or `auto` on a GPU."""
        return config.engine == "torch" or (config.engine == "auto" and self.device.type != "cpu")


@dataclass(frozen=True)
class Inputs:
    """The inputs of an item."""

    fields: frozenset[str] = frozenset()  # of its JSON object; other fields are options
    media_types: tuple[str, ...] = ()  # of bodies other than JSON, for the metadata
    dimensions: int = 0  # of an item that is a tensor of numbers
    # Tensors by field, unless they are BYTES [B], or FP32 with `dimensions`.
    tensors: Mapping[str, TensorMetadata] = field(default_factory=dict)
    in_threads: bool = True  # whether decoding an item takes longer than passing it to a thread
    are_shared: bool = False  # whether a field may be beside "instances", for all of them
    # Makes items of a request's contents; None for `Fields`, which does it by `fields`.
    items: Callable[[Fields, Model], Items] | None = None
    overhead: Overhead = OVERHEAD  # cost of one more micro-batch of them


TEXTS = Inputs(frozenset({"text"}), ("text/plain",), in_threads=False)  # checking a text takes microseconds


@dataclass(frozen=True)
class Results:
    """How the results of items are answered."""

    tensors: OutputTensors = field(default_factory=documents)  # of the Open Inference Protocol
    piped: Piped = field(default_factory=Piped)  # the answer to {"inputs": ...}
    batch_dims: Mapping[str, int] = field(default_factory=dict)  # by an output tensor's name: that of rows, if not 0
    view: str = ""  # how the gateway's page shows an answer (results.js); empty for JSON
    api: Api | None = None  # the API whose responses contain them
    also: tuple[Api, ...] = ()  # other ones
    is_mean: bool = False  # whether MaxSim of a model of late interaction is a mean, and not a sum
    ranges: Array | None = None  # the least and the greatest value of vectors in int8, (2, D)
    # The only accepted value of each field with which clients of `api` would change the answer.
    only: Mapping[str, object] = field(default_factory=dict)
    is_repeatable: bool = True  # whether those of equal items are equal, so that one may serve all


# Former attributes of a task, with what has replaced them: what a task stated, then what it reads.
FORMER = {
    **dict.fromkeys(("item_dimensions", "input_tensors", "media_types", "decodes_in_threads", "items"), "Inputs"),
    **dict.fromkeys(("output_tensors", "only_values", "piped", "batch_dims", "view", "api", "ranges"), "Results"),
    "samples": "`sample`, which may return a list",
    "tokens": "Cost(sent=...)",
    "graph_lengths": "Overhead(lengths=...)",
    "reads_options": "`decode`, which always gets checked options",
    "overhead": "Inputs(overhead=...)",
    "is_repeatable": "Results(is_repeatable=...)",
}
FORMERLY_READ = {
    **{
        name: f"self.archive.{name}"
        for name in ("model_dir", "checkpoint_dir", "device", "fingerprint", "longest_run_s", "metadata", "shape")
    },
    "uses_torch": "self.archive.uses_torch(self.config)",
    "overhead": "self.inputs.overhead",
}


def check_attributes(task: object) -> None:
    """Raise InvalidConfig for a task with an attribute of a former release."""
    if former := [f"{name} is replaced by {new}" for name, new in FORMER.items() if hasattr(task, name)]:
        raise InvalidConfig(f"{type(task).__name__}: {'; '.join(former)}; see handlers/pipeline/values.py")
