"""Ends a worker after a bug: TorchServe answers the requests in flight with 500, and starts another worker."""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from handlers.errors import where

logger = logging.getLogger(__name__)


def start(name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
    """Start a thread that ends the worker if it raises."""

    def run() -> None:
        with watch():
            work(*arguments)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


@contextmanager
def watch() -> Iterator[None]:
    """End the worker if the block raises."""
    try:
        yield
    except BaseException as error:
        end(error)


def end(error: BaseException) -> NoReturn:
    logger.critical("The worker's thread %s failed: %s", threading.current_thread().name, where(error))
    logging.shutdown()
    os._exit(1)
