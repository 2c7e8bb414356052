"""What TorchServe says of the models that a node is to serve, asked in a thread of its own.

    every second: GET /models/M[/V] -> health -> Health, kept for whoever asks

An answer may take seconds on a busy server, and nobody waits for it but the thread. Where none comes, what was known
stays: a busy node is a ready one.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchserve_client.errors import ManagementError
from torchserve_client.management import Management

# Seconds between two looks.
LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of the models.

    Attributes:
        is_ready: whether all workers of each are READY.
        words: which are not.
        response_timeout_s: the longest that one of them may take for an answer.
    """

    is_ready: bool
    words: str
    response_timeout_s: float


def health(described: Iterable[Mapping[str, Any]]) -> Health:
    """Judge by the descriptions that TorchServe gives of each version."""
    lacking = []
    response_timeout_s = 0.0
    for each in described:
        wanted = max(1, int(each["minWorkers"]))
        ready = sum(worker["status"] == "READY" for worker in each["workers"])
        response_timeout_s = max(response_timeout_s, float(each.get("responseTimeout", 120)))
        if ready < wanted:
            lacking.append(f"{each['modelName']} {each['modelVersion']}: {ready} of {wanted} workers READY")
    return Health(not lacking, "; ".join(lacking) or "ready", response_timeout_s)


def ask(management: Management, wanted: Sequence[tuple[str, str]]) -> Health:
    """Ask a TorchServe.

    Args:
        management: its management API.
        wanted: names and versions; those that are not registered any more are left out. None at all for whatever is
            registered.

    Raises:
        ManagementError: it gave no answer, or an error.
    """
    versions = wanted or [(model, version) for model in management.models() for version in management.versions(model)]
    described = []
    for model, version in versions:
        try:
            described.append(management.describe(model, version))
        except ManagementError as error:
            if error.status != 404:
                raise
    return health(described)


class Watch:
    """Asks again and again, until told to end."""

    def __init__(self, look: Callable[[], Health]) -> None:
        """Know nothing yet; `look` asks."""
        self._look = look
        self.health = Health(False, "starting", 0.0)
        self._is_over = threading.Event()
        # It may stand in the middle of a question when the process ends.
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        """Ask once, and go on asking.

        Raises:
            ManagementError: the first time gave no answer.
        """
        self.health = self._look()
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; does not wait for an answer that is due."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            try:
                self.health = self._look()
            except (ManagementError, LookupError, TypeError, ValueError):
                continue
