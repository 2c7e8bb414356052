"""What an operator has decided: which nodes drain, which version is tried, which is withdrawn.

PUT /control/... -> Decisions -> a file, so that it outlives the control process -> Fleet
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from deploy.gateway.settings import Canary
from deploy.run import node as node_files
from handlers.config import SETTINGS

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class Decided:
    """What stands until it is decided otherwise.

    Attributes:
        draining: names of nodes that get no new requests.
        withdrawn: model and version of what is off the routes.
        canaries: by the model's name.
    """

    draining: frozenset[str] = frozenset()
    withdrawn: frozenset[tuple[str, str]] = frozenset()
    canaries: dict[str, Canary] = Field(default_factory=dict)


DECIDED = TypeAdapter(Decided)


class Decisions:
    """The file of what was decided last."""

    def __init__(self, path: Path) -> None:
        """Read what the file holds; a file that cannot be read is as none, and the log says so."""
        self._path = path
        self.now = Decided()
        if path.exists():
            try:
                self.now = DECIDED.validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                words = "no node drains, no canary is tried, nothing is withdrawn"
                logger.warning("%s: %s (%s)", path.name, words, type(error).__name__)

    def decide(self, **parts: Any) -> None:
        """Replace parts of what was decided: kept first, so that nothing holds that a restart would lose.

        Raises:
            OSError: the file cannot be written; nothing has changed.
        """
        decided = replace(self.now, **parts)
        if decided != self.now:
            node_files.replace(self._path, DECIDED.dump_json(decided, indent=1).decode())
            self.now = decided
