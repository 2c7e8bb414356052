"""Holds the handler that a tensor model's cost is held against: TorchServe's own, with bodies for answers."""

from typing import Any

from ts.torch_handler.base_handler import BaseHandler


class Bare(BaseHandler):  # type: ignore[misc]
    """Returns what it is given, and does nothing else: not even BaseHandler's own metrics."""

    def initialize(self, context: Any) -> None:
        """Load nothing."""
        self.context = context
        self.initialized = True

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:  # noqa: ARG002
        """Return the bodies of a batch."""
        return [bytes(row["body"]) for row in data]
