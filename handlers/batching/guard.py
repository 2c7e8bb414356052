"""Ends a worker after a bug: TorchServe answers the requests in flight with 500, and starts another worker."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from handlers.errors import where

logger = logging.getLogger(__name__)


def _end_process() -> None:
    os._exit(1)


class Guard:
    """Calls `die` if a thread raises; by default `die` ends this process."""

    def __init__(self, die: Callable[[], Any] = _end_process) -> None:
        self._die = die

    def start(self, name: str, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(work, *arguments), name=name, daemon=True)
        thread.start()
        return thread

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        with self.watch():
            work(*arguments)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """End the worker if the block raises."""
        try:
            yield
        except BaseException as error:
            logger.critical("The worker's thread %s failed: %s", threading.current_thread().name, where(error))
            logging.shutdown()
            self._die()
