"""The way of requests through a task, the same in both modes: flow.py tells it from top to bottom.

    Task            the hooks that it calls
    slots           the state of each item on its way
    micro_batches   which items go through the model together

It may import handlers.protocol and handlers.engines, and what is below these.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from handlers.config import HandlerConfig
from handlers.engines import Arrays, Engine, Listener, Outputs
from handlers.pipeline.micro_batches import Cost, Overhead
from handlers.pipeline.slots import Pieces
from handlers.protocol.metadata import Metadata
from handlers.protocol.requests import Payload, Request


class Task(Protocol):
    """The hooks and settings of a loaded task; see handlers.base.BatchHandler."""

    engine: Engine
    model_dir: Path
    fingerprint: str | None
    overhead: Overhead
    decodes_in_threads: Any

    @property
    def config(self) -> HandlerConfig: ...
    @property
    def metadata(self) -> Metadata: ...

    def sample(self) -> Payload | None: ...
    def samples(self) -> Iterable[Payload]: ...
    def unpack(self, row: Mapping[str, Any], headers: Mapping[str, Any]) -> Request: ...
    def decode(self, payload: Payload) -> Any: ...
    def prepare(self, items: Sequence[Any]) -> Sequence[Any]: ...
    def cost(self, item: Any) -> Cost: ...
    def tokens(self, item: Any) -> int: ...
    def collate(self, items: Sequence[Any]) -> Arrays: ...
    def forward(self, inputs: Arrays, items: Sequence[Any]) -> Outputs: ...
    def pieces(self, item: Any) -> Pieces | None: ...
    def forward_progressively(self, inputs: Arrays, items: Sequence[Any], progress: Listener) -> Outputs: ...
    def split(self, outputs: Outputs, items: Sequence[Any]) -> Sequence[Any]: ...
