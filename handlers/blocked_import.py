"""An import that tries optional packages, kept from trying one that costs seconds and serves nobody here."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def blocked_import(module: str, importer: str) -> Iterator[None]:
    """Let `import module` fail at once for as long as this lasts, the way Python documents: None in sys.modules.

    Args:
        module: what is not to be imported; where it is imported already it stays so.
        importer: name of the logger whose warnings would say that it is missing, which reads like a fault.
    """
    if module in sys.modules:
        yield
        return
    logger = logging.getLogger(importer)
    level = logger.level
    logger.setLevel(logging.ERROR)
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
        logger.setLevel(level)
