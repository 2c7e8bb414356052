"""The counters of a handler, for servers other than TorchServe."""

from collections.abc import Callable
from typing import Any

MODEL = ("ModelName", "ModelVersion")  # the labels that each sample has, besides its own


class Metrics(dict[str, Any]):
    """A handler's counters; it has the interface of TorchServe's metrics cache."""

    def __init__(self, make: Callable[[str, tuple[str, ...]], Any]) -> None:
        """`make` returns the counter of a name and labels; its `add_or_update(value, labels)` adds to a sample."""
        super().__init__()
        self._make = make

    def get_metric(self, name: str, kind: object) -> Any:  # noqa: ARG002
        if name not in self:
            from handlers.metrics import COUNTERS  # noqa: PLC0415

            (own,) = {counter.labels for counter in COUNTERS if counter.name == name}
            self[name] = self._make(name, (*MODEL, *own))
        return self[name]
