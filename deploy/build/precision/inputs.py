"""Inputs that a precision is made with and held against fp32 with: a user's own, or else the examples'.

    folder of files | file of lines -> the client's own inputs -> names and what a client would send
                                    -> the task's decode and prepare -> items, and what it does not take
    items                           -> split                         -> to calibrate with, to validate with

    photographs of the model's folder, or of examples/ -> crops by a seed -> payloads
    requests of the model's folder, sample sentences   -> texts           -> payloads

Folders and files are read as `torchserve-client predict` reads them. A line is a text; where a task takes several
fields, question and context, or the text has a label, it is a JSON object of them. A file's label is its folder's name.
"""

import io
import json
import math
import random
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from PIL import Image

from deploy.models import MODEL_LIST, ModelEntry
from handlers.errors import InvalidConfig, InvalidInput, ItemError
from handlers.protocol.requests import Payload
from torchserve_client.errors import InvalidPayload
from torchserve_client.inputs import Input, read_inputs

# Tasks whose answers can be held against fp32's, by what an input of theirs is; those of two graphs have no int8.
TWO_GRAPHS = ("image_text_embedding",)
IMAGES = ("image_classification", "object_detection", "image_segmentation", *TWO_GRAPHS)
TEXTS = ("text_classification", "token_classification", "sentence_embedding")
QUESTIONS = ("question_answering",)
PAIRS = ("reranking",)
TASKS = (*IMAGES, *TEXTS, *QUESTIONS, *PAIRS)

SEED = 0
# Inputs below which nothing can be both learned and proven; a quarter of ten is two or three. Most that calibrate,
# NNCF's own default; and most that validate: 300 of them that are no near ties bear a share of 0.99.
FEWEST, MOST, MOST_VALIDATING = 10, 300, 1000
# The share of the inputs that is kept back at least where none are given to validate with.
HELD_OUT = 0.25
# Inputs that a message names.
NAMED = 3
# So many crops of photographs; they take a trained ResNet-152 two seconds in fp32.
CROPS = 20
# A crop's side, as a share of the photograph's shorter one: what is photographed stays in it.
SHARES = (0.7, 1.0)
SUFFIXES = (".jpg", ".jpeg", ".png")
EXAMPLES = MODEL_LIST.parent
SENTENCES = EXAMPLES / "translation" / "samples.txt"
# Asked of each sentence, so that a model has more than one question to answer.
QUESTION = "Who or what is it about?"

Kind = TypeVar("Kind")


def listed(path: Path) -> list[Input]:
    """List a folder's files, or a file's lines.

    Raises:
        InvalidConfig: there is no such path, or it is neither; or it holds nothing.
    """
    try:
        found = list(read_inputs(path))
    except InvalidPayload as error:
        raise InvalidConfig(str(error)) from None
    if not found:
        raise InvalidConfig(f"{path}: no inputs in it")
    return found


def some(inputs: Sequence[Kind], seed: int = SEED) -> list[Kind]:
    """Take as many of the inputs as both parts may have, in an order that the seed decides."""
    return random.Random(seed).sample(inputs, min(len(inputs), MOST + MOST_VALIDATING))  # noqa: S311


def split(inputs: Sequence[Kind]) -> tuple[list[Kind], list[Kind]]:
    """Divide inputs that stand in an order of chance: at most MOST to calibrate with, and the others to validate with.

    The others are a quarter at least.
    """
    count = max(math.ceil(HELD_OUT * len(inputs)), len(inputs) - MOST)
    return list(inputs[count:]), list(inputs[:count])


def payload(each: Input, fields: Set[str], *, is_text: bool) -> Payload:
    """Make what a client would send of an input.

    Args:
        each: a file or a line.
        fields: the names of the task's inputs; a line is a JSON object where there are several, or a label.
        is_text: whether the task takes texts, so that a file is one.

    Raises:
        InvalidInput: it is no UTF-8, or no JSON object.
        OSError: the file cannot be read.
    """
    content = each.content()
    if not is_text:
        return Payload(content)
    document = _document(content)
    if document is not None and fields & document.keys():
        return Payload({name: document[name] for name in document if name in fields})
    if len(fields) > 1:
        raise InvalidInput(f"not a JSON object of {' and '.join(sorted(fields))}")
    try:
        return Payload(content.decode())
    except ValueError:
        raise InvalidInput("not UTF-8") from None


def _document(content: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None of something else."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


class Taken(NamedTuple):
    """An input that the model takes, decoded, and its label where it has one: its folder's name, or JSON's "label"."""

    item: Any
    label: Any


def decoded(task: Any, inputs: Sequence[Input], *, is_text: bool) -> tuple[list[Taken], list[str]]:
    """Decode inputs by a task's own hooks.

    Args:
        task: loaded.
        inputs: files or lines.
        is_text: see `payload`.

    Returns:
        What the model takes, and a line on each input that it does not.
    """
    taken: list[Taken] = []
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
            taken.append(Taken(item, _label(each)))
    return taken, refused


def _label(each: Input) -> Any:
    if isinstance(each.value, Path):
        folder, slash, _ = each.name.partition("/")
        return folder if slash else None
    return (_document(each.content()) or {}).get("label")


def truths(taken: Sequence[Taken], names: Sequence[str]) -> list[int] | None:
    """Return the number of each input's class; None where no input has a class of the model's as its label.

    Args:
        taken: labels are names of classes, or their numbers.
        names: the model's, by number.

    Raises:
        InvalidConfig: some have one and others have not.
    """
    numbers = {str(number): number for number in range(len(names))} | {name: at for at, name in enumerate(names)}
    found = [None if each.label is None else numbers.get(str(each.label)) for each in taken]
    known = [number for number in found if number is not None]
    if known and len(known) < len(found):
        raise InvalidConfig(
            f"{len(found) - len(known)} of {len(found)} inputs to validate with have no class of the model's as their "
            'label: name folders, or "label", by its classes or their numbers; or give inputs without labels'
        )
    return known or None


def left_out(path: Path, count: int, refused: Sequence[str]) -> str | None:
    """Say in one line what the model does not take; None where it takes everything.

    Raises:
        InvalidConfig: it takes nothing.
    """
    if not refused:
        return None
    first = "; ".join(refused[:NAMED]) + ("; ..." if len(refused) > NAMED else "")
    if len(refused) == count:
        raise InvalidConfig(f"{path}: the model takes none of its {count} inputs: {first}")
    return f"{path}: {len(refused)} of {count} inputs are left out: {first}"


def sample_files(model: ModelEntry) -> list[Path]:
    """Find the files that a model's samples are made from."""
    if model.handler in IMAGES:
        return _images(model.folder) or [path for folder in sorted(EXAMPLES.iterdir()) for path in _images(folder)]
    return [*_requests(model.folder), SENTENCES]


def sample_payloads(model: ModelEntry, fields: Set[str]) -> list[Payload]:
    """Make samples of a model whose inputs have these names."""
    lines = (line.strip() for line in SENTENCES.read_text(encoding="utf-8").splitlines())
    texts = [line for line in lines if line and not line.startswith("#")]
    if model.handler in IMAGES:
        images = [Payload(body) for body in crops(sample_files(model))]
        return [*images, *(Payload({"text": text}) for text in texts if "text" in fields)]
    own = [each for path in _requests(model.folder) for each in _instances(path)]
    if model.handler in QUESTIONS:
        asked = [{"question": QUESTION, "context": text} for text in texts]
        return [Payload(each) for each in (*filter(_is_question, own), *asked)]
    if model.handler in PAIRS:
        return [Payload({"query": QUESTION, "document": text}) for text in texts]
    return [Payload(text) for text in (*(each for each in map(_text, own) if each), *texts)]


def crops(photographs: list[Path], count: int = CROPS, seed: int = SEED) -> Iterator[bytes]:
    """Cut squares out of photographs, at places and in sizes that a seed decides, in turn; PNG."""
    generator = random.Random(seed)  # noqa: S311
    pictures = [Image.open(path).convert("RGB") for path in photographs]
    for index in range(count if pictures else 0):
        picture = pictures[index % len(pictures)]
        side = int(min(picture.size) * generator.uniform(*SHARES))
        left, top = (generator.randrange(length - side + 1) for length in picture.size)
        with io.BytesIO() as body:
            picture.crop((left, top, left + side, top + side)).save(body, "PNG", compress_level=1)
            yield body.getvalue()


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)


def _requests(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.json")) if not path.name.endswith((".expected.json", "_name.json"))]


def _instances(path: Path) -> list[Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        return []
    found = document.get("instances", [document])
    return found if isinstance(found, list) else []


def _text(instance: Any) -> str | None:
    text = instance.get("text") if isinstance(instance, dict) else instance
    return text if isinstance(text, str) else None


def _is_question(instance: Any) -> bool:
    return isinstance(instance, dict) and {"question", "context"} <= instance.keys()
