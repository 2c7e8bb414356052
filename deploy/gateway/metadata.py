"""What handlers say of themselves: asked once of each version, and again when its workers are others.

A function of the user's that declares no outputs knows them once it has run; it is asked until it has said them.

version with a READY worker -> GET /predictions/M/V, X-Model-Metadata: 1 -> {"platform", "inputs", "outputs", ...}
                                  └> refused: a handler that is not of this project; asked again later
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

from deploy.gateway.management import NodeFailed, ask
from deploy.run.node import Node

logger = logging.getLogger(__name__)

# The question stands in the model's queue, behind what clients sent: seconds that it may.
ANSWER_S = 60.0
# Seconds until a version is asked again that has refused, that did not answer, or that knows no outputs yet.
REFUSED_S, FAILED_S, OUTPUTS_S = 60.0, 5.0, 5.0


@dataclass(slots=True)
class _Asked:
    generation: tuple[str, ...]
    metadata: Mapping[str, Any] | None = None
    task: asyncio.Task[None] | None = None
    # When it may be asked again, on the monotonic clock; None where nothing more is to be asked.
    again_s: float | None = 0.0


class Metadata:
    """The answers of all versions."""

    def __init__(self, session: aiohttp.ClientSession, changed: Callable[[], None]) -> None:
        """Keep answers; `changed` is called when there is a new one."""
        self._session = session
        self._changed = changed
        self._asked: dict[tuple[str, str], _Asked] = {}

    def of(self, model: str, version: str) -> Mapping[str, Any] | None:
        """Return what the version said last; None where it has not, or does not know the question."""
        asked = self._asked.get((model, version))
        return None if asked is None else asked.metadata

    def want(self, model: str, version: str, ready: Mapping[tuple[str, ...], Node]) -> None:
        """Have a version asked, unless workers that were asked are still there.

        Args:
            model, version: whose handler is asked.
            ready: the generation of READY workers on a node -> that node; at least one.
        """
        asked = self._asked.setdefault((model, version), _Asked(next(iter(ready))))
        if asked.generation not in ready:
            asked.generation, asked.again_s = next(iter(ready)), 0.0
        is_due = asked.again_s is not None and time.monotonic() >= asked.again_s
        if is_due and (asked.task is None or asked.task.done()):
            asked.task = asyncio.create_task(self._ask(asked, model, version, ready[asked.generation]))

    def keep(self, versions: set[tuple[str, str]]) -> None:
        """Forget every version but these."""
        for gone in self._asked.keys() - versions:
            task = self._asked.pop(gone).task
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        """Ask no more."""
        tasks = [asked.task for asked in self._asked.values() if asked.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, asked: _Asked, model: str, version: str, node: Node) -> None:
        generation, found = asked.generation, asked.metadata
        path = f"/predictions/{quote(model, safe='')}/{quote(version, safe='')}"
        headers = {"X-Model-Metadata": "1"}
        try:
            status, said = await ask(self._session, node, path, timeout_s=ANSWER_S, api="inference", headers=headers)
            if status == 200 and is_metadata(said):
                found, again_s = said, None if said["outputs"] else time.monotonic() + OUTPUTS_S
            elif status < 500:
                # It does not know the question, or takes any request for one of its own.
                found, again_s = None, time.monotonic() + REFUSED_S
            else:
                raise NodeFailed(str(status))
        except NodeFailed as error:
            logger.warning("%s %s on %s: metadata: %s", model, version, node.name, error)
            again_s = time.monotonic() + FAILED_S
        if asked.generation != generation:
            # Others are READY by now; the next look asks them.
            return
        asked.again_s = again_s
        if asked.metadata != found:
            asked.metadata = found
            self._changed()


def is_metadata(document: object) -> bool:
    """Return whether it says what the gateway reads: names, datatypes and shapes of inputs and outputs."""
    if not isinstance(document, dict):
        return False
    tensors = [document.get("inputs"), document.get("outputs")]
    return isinstance(document.get("platform", ""), str) and all(
        isinstance(listed, list) and all(map(_is_tensor, listed)) for listed in tensors
    )


def _is_tensor(tensor: object) -> bool:
    if not isinstance(tensor, dict):
        return False
    shape = tensor.get("shape")
    words = (tensor.get("name"), tensor.get("datatype"))
    is_shape = isinstance(shape, list) and all(isinstance(size, int) for size in shape)
    return is_shape and all(isinstance(word, str) for word in words)
