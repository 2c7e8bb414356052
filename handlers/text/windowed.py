"""The handler that the tasks on long texts share: a text runs in windows, all of them in one micro-batch."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from handlers.engines import Arrays, Engine
from handlers.errors import InvalidConfig, InvalidOption
from handlers.pipeline.micro_batches import Cost
from handlers.text.config import WindowsConfig
from handlers.text.handler import TextHandler
from handlers.text.windows import SHARED_TOKENS, Windowed

Config = TypeVar("Config", bound=WindowsConfig)
Item = TypeVar("Item", bound=Windowed[Any])


class WindowsHandler(TextHandler[Config, Item], Generic[Config, Item]):
    """Each window is a row."""

    needs_places = True

    def load(self) -> Engine:
        engine = super().load()
        self.max_length = self.window_tokens()
        stride = self.config.doc_stride
        self.doc_stride = min(self.max_length // 2, SHARED_TOKENS) if stride is None else stride
        if self.doc_stride >= self.max_length:
            raise InvalidConfig(f"doc_stride: {self.doc_stride} is not less than max_length {self.max_length}")
        return engine

    def check(self, options: object) -> None:
        if self.stride(options) >= self.max_length:
            raise InvalidOption(f"doc_stride: {self.stride(options)}; must be less than {self.max_length}.")

    def stride(self, options: object) -> int:
        """Return the tokens that neighbouring windows share; a task of a user may lack the option."""
        asked: int | None = getattr(options, "doc_stride", None)
        return self.doc_stride if asked is None else asked

    def window_tokens(self) -> int:
        return self.max_length

    def cost(self, item: Item) -> Cost:
        """The item's length is the padded tokens of all its windows."""
        length = len(item.windows) * self.padded_length(max(len(window.ids) for window in item.windows))
        return Cost(length, sent=len(item.ids))

    def collate(self, items: Sequence[Item]) -> Arrays:
        return self.stack([window for item in items for window in item.windows])
