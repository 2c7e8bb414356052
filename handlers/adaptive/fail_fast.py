"""What becomes of a bug on a thread of the worker's own: the worker ends, and not only the thread while callers wait.

TorchServe's frontend then answers whoever is in flight, and starts another worker.
"""

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
    """Watches over threads."""

    def __init__(self, die: Callable[[], Any] = _end_process) -> None:
        """Watch over threads; `die` is called for a bug, and ends this process at once."""
        self._die = die

    def run(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do a thread's work."""
        with self.watch():
            work(*arguments)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """End the worker with whatever is raised inside."""
        try:
            yield
        except BaseException as error:
            logger.critical("The worker's thread %s failed: %s", threading.current_thread().name, where(error))
            logging.shutdown()
            self._die()
