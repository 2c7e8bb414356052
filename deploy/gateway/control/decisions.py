"""What an operator has decided: which nodes drain, which version is tried, which is withdrawn.

PUT /control/... -> Decisions -> a file, so that it outlives the control process -> Fleet
"""

import json
import logging
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from deploy.gateway.settings import CanaryRequest
from deploy.gateway.state import Canary
from handlers.config import SETTINGS

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class DrainingRequest:
    """Whether a node is to be taken out."""

    draining: bool


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class WithdrawalRequest:
    """Whether a version is to be taken off the routes; None for every version that is registered now."""

    withdrawn: bool
    version: str | None = None


@dataclass(frozen=True, kw_only=True, config=SETTINGS)
class _Document:
    draining: tuple[str, ...] = ()
    withdrawn: tuple[tuple[str, str], ...] = ()
    canaries: dict[str, CanaryRequest] = Field(default_factory=dict)


class Decisions:
    """Draining nodes, canaries and withdrawn versions, as they were decided last."""

    def __init__(self, path: Path) -> None:
        """Read what the file holds; a file that cannot be read is as none, and the log says so."""
        self._path = path
        self.draining: frozenset[str] = frozenset()
        self.canaries: dict[str, Canary] = {}
        # The model's name and the version of each.
        self.withdrawn: frozenset[tuple[str, str]] = frozenset()
        try:
            document = TypeAdapter(_Document).validate_json(path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            logger.warning(
                "%s: no node drains, no canary is tried, nothing is withdrawn (%s)", path.name, type(error).__name__
            )
            return
        self.draining = frozenset(document.draining)
        self.withdrawn = frozenset(document.withdrawn)
        self.canaries = {model: canary_of(canary) for model, canary in document.canaries.items()}

    def drain(self, node: str, is_draining: bool) -> None:
        """Take a node out, or let it get requests again."""
        self.draining = self.draining | {node} if is_draining else self.draining - {node}
        self._save()

    def keep(self, nodes: set[str]) -> None:
        """Forget nodes that are no more: one that comes with an old name is not draining."""
        if self.draining - nodes:
            self.draining &= nodes
            self._save()

    def try_canary(self, model: str, asked: CanaryRequest) -> None:
        """Give a version a share of a model's traffic."""
        self.canaries = {**self.canaries, model: canary_of(asked)}
        self._save()

    def end_canary(self, model: str) -> None:
        """Give it none."""
        self.canaries = {name: canary for name, canary in self.canaries.items() if name != model}
        self._save()

    def withdraw(self, versions: set[tuple[str, str]], is_withdrawn: bool) -> None:
        """Take versions off the routes, or put them back; each is the model's name and the version."""
        self.withdrawn = self.withdrawn | versions if is_withdrawn else self.withdrawn - versions
        self._save()

    def keep_withdrawn(self, registered: set[tuple[str, str]]) -> None:
        """Forget versions that are no more: one that is registered anew under its name is served."""
        if self.withdrawn - registered:
            self.withdrawn &= registered
            self._save()

    def _save(self) -> None:
        document = {
            "draining": sorted(self.draining),
            "withdrawn": sorted(self.withdrawn),
            "canaries": {model: canary_document(canary) for model, canary in self.canaries.items()},
        }
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(document, indent=1), encoding="utf-8")
        new.replace(self._path)


def canary_document(canary: Canary) -> dict[str, object]:
    """A canary as JSON has it."""
    return {
        "version": canary.version,
        "percent": canary.percent,
        "header": list(canary.header) if canary.header else None,
    }


def canary_of(asked: CanaryRequest) -> Canary:
    """What was asked for, as the fleet has it."""
    return Canary(asked.version, asked.percent, asked.header)
