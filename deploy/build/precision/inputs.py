"""Inputs that a precision is made with and held against fp32 with: read from where a user has them.

    folder of files | file of lines -> the client's own Source -> names and what a client would send
                                    -> the task's decode and prepare -> items, and what it does not take
    items                           -> split                         -> to calibrate with, to validate with

Folders and files are read as `torchserve-client predict` reads them. A line is a text; where a task takes several
fields, question and context, it is a JSON object of them.
"""

import json
import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from handlers.errors import InvalidConfig, InvalidInput, ItemError
from handlers.protocol.requests import Payload
from torchserve_client.errors import InvalidPayload
from torchserve_client.inputs import Input, source

SEED = 0


@dataclass(frozen=True, slots=True)
class Tuning:
    """How many inputs there must be, and how many are taken.

    Attributes:
        fewest: inputs below which nothing can be both learned and proven; a quarter of ten is two or three.
        most: inputs of either part that are read; NNCF's own default for calibration, and enough for a share of 0.99.
        held_out: the share of the inputs that is kept back where none are given to validate with.
        named: inputs that a message names.
    """

    fewest: int = 10
    most: int = 300
    held_out: float = 0.25
    named: int = 3


TUNING = Tuning()


Kind = TypeVar("Kind")


def listed(path: Path) -> list[Input]:
    """List a folder's files, or a file's lines.

    Raises:
        InvalidConfig: there is no such path, or it is neither; or it holds nothing.
    """
    try:
        with source(path) as inputs:
            found = list(inputs)
    except InvalidPayload as error:
        raise InvalidConfig(str(error)) from None
    if not found:
        raise InvalidConfig(f"{path}: no inputs in it")
    return found


def some(inputs: Sequence[Kind], seed: int = SEED) -> list[Kind]:
    """Take as many of the inputs as both parts may have, in an order that the seed decides."""
    return random.Random(seed).sample(inputs, min(len(inputs), math.ceil(TUNING.most / (1 - TUNING.held_out))))  # noqa: S311


def split(inputs: Sequence[Kind]) -> tuple[list[Kind], list[Kind]]:
    """Divide inputs that stand in an order of chance: those to calibrate with, and a quarter to validate with."""
    count = math.ceil(TUNING.held_out * len(inputs))
    return list(inputs[count:]), list(inputs[:count])


def payload(each: Input, fields: Collection[str], *, is_text: bool) -> Payload:
    """Make what a client would send of an input.

    Args:
        each: a file or a line.
        fields: the names of the task's inputs; a line is a JSON object where there are several.
        is_text: whether the task takes texts, so that a file is one.

    Raises:
        InvalidInput: it is no UTF-8, or no JSON object.
        OSError: the file cannot be read.
    """
    if not is_text:
        return Payload(each.content())
    try:
        text = each.content().decode()
        if len(fields) == 1:
            return Payload(text)
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidInput(f"not a JSON object of {' and '.join(sorted(fields))}")
    return Payload({name: document[name] for name in document if name in fields})


def decoded(task: Any, inputs: Sequence[Input], *, is_text: bool) -> tuple[list[Any], list[str]]:
    """Decode inputs by a task's own hooks.

    Args:
        task: loaded.
        inputs: files or lines.
        is_text: see `payload`.

    Returns:
        What the model takes, and a line on each input that it does not.
    """
    taken: list[Any] = []
    refused: list[str] = []
    for each in inputs:
        try:
            (item,) = task.prepare([task.decode(payload(each, task.inputs, is_text=is_text))])
        except InvalidInput as error:
            item = ItemError.of(error)
        except OSError as error:
            item = ItemError(400, type(error).__name__, error.strerror or "cannot be read")
        if isinstance(item, ItemError):
            refused.append(f"{each.name}: {item.message}")
        else:
            taken.append(item)
    return taken, refused


def left_out(path: Path, count: int, refused: Sequence[str]) -> str | None:
    """Say in one line what the model does not take; None where it takes everything.

    Raises:
        InvalidConfig: it takes nothing.
    """
    if not refused:
        return None
    first = "; ".join(refused[: TUNING.named]) + ("; ..." if len(refused) > TUNING.named else "")
    if len(refused) == count:
        raise InvalidConfig(f"{path}: the model takes none of its {count} inputs: {first}")
    return f"{path}: {len(refused)} of {count} inputs are left out: {first}"
