"""What handlers say of themselves: asked once of each version, and again when its workers are others.

A function of the user's that declares no outputs knows them once it has run; it is asked until it has said them.

version with a READY worker -> GET /predictions/M/V, X-Model-Metadata: 1 -> {"platform", "inputs", "outputs", ...}
                                  └> refused: a handler that is not of this project; asked again later
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

from deploy.gateway.watch import CONNECT_S, NodeFailed, token
from deploy.run.node import Node

logger = logging.getLogger(__name__)

# The question stands in the model's queue, behind what clients sent: seconds that it may.
ANSWER_S = 60.0
# Bytes of the longest answer that is read: a model of thousands of labels says less of itself.
ANSWER_BYTES = 1 << 20
# Seconds until a version is asked again that has refused, that did not answer, or that knows no outputs yet.
REFUSED_S, FAILED_S, OUTPUTS_S = 60.0, 5.0, 5.0


class Refused(Exception):
    """The handler does not know the question."""


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
        """What the version said last; None where it has not, or does not know the question."""
        asked = self._asked.get((model, version))
        return None if asked is None else asked.metadata

    def want(self, model: str, version: str, ready: Mapping[tuple[str, ...], Node]) -> None:
        """Have a version asked, unless workers that were asked are still there.

        Args:
            model, version: whose handler is asked.
            ready: the generation of READY workers on a node -> that node; at least one.
        """
        asked = self._asked.get((model, version))
        if asked is None or asked.generation not in ready:
            generation = next(iter(ready))
            if asked is None:
                asked = self._asked[model, version] = _Asked(generation)
            else:
                asked.generation, asked.again_s = generation, 0.0
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
        generation = asked.generation
        found: Mapping[str, Any] | None = None
        try:
            found = await self._answer(model, version, node)
            again_s = None if found["outputs"] else time.monotonic() + OUTPUTS_S
        except Refused:
            again_s = time.monotonic() + REFUSED_S
        except NodeFailed as error:
            logger.warning("%s %s on %s: metadata: %s", model, version, node.name, error)
            found, again_s = asked.metadata, time.monotonic() + FAILED_S
        if asked.generation != generation:
            # Others are READY by now; the next look asks them.
            return
        asked.again_s = again_s
        if asked.metadata != found:
            asked.metadata = found
            self._changed()

    async def _answer(self, model: str, version: str, node: Node) -> Mapping[str, Any]:
        url = f"{node.inference}/predictions/{quote(model, safe='')}/{quote(version, safe='')}"
        timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
        headers = {**token(node, "inference"), "X-Model-Metadata": "1"}
        try:
            async with self._session.get(url, headers=headers, timeout=timeout) as answer:
                if 400 <= answer.status < 500:
                    raise Refused
                if answer.status != 200:
                    raise NodeFailed(f"{answer.status}")
                body = bytearray()
                async for part in answer.content.iter_any():
                    body += part
                    if len(body) > ANSWER_BYTES:
                        raise Refused
                document: Any = json.loads(body)
        except TimeoutError:
            raise NodeFailed(f"no answer in {ANSWER_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise NodeFailed(f"cannot be reached ({type(error).__name__})") from None
        except ValueError:
            raise Refused from None
        if not is_metadata(document):
            # A handler that takes any request for one of its own has answered it.
            raise Refused
        found: Mapping[str, Any] = document
        return found


def is_metadata(document: object) -> bool:
    """Whether it says what every part of the gateway reads: names, datatypes and shapes of inputs and outputs."""
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
    return (
        isinstance(tensor.get("name"), str)
        and isinstance(tensor.get("datatype"), str)
        and isinstance(shape, list)
        and all(isinstance(size, int) for size in shape)
    )
