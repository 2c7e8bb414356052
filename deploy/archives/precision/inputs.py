"""Inputs to calibrate a precision with, and to compare it with fp32: a user's own, or the examples'.

folder of files | file of lines -> the client's own inputs       -> names and payloads
                                -> the task's decode and prepare -> items, and rejections
items                           -> split                         -> to calibrate with, to validate with

photographs of the model's folder, or of examples/ -> crops by a seed -> payloads
requests of the model's folder, sample sentences   -> texts           -> payloads
"""

import io
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from PIL import Image

from deploy.archives.sources import list_requests
from deploy.archives.tasks import task_of
from deploy.models import ModelEntry
from deploy.places import EXAMPLES
from handlers.errors import InvalidConfig, InvalidInput, ItemError
from handlers.pipeline.task import Task as Served
from handlers.pipeline.task import decode, inputs_of
from handlers.protocol.requests import Payload
from torchserve_client.errors import InvalidPayload
from torchserve_client.inputs import Input, read_inputs
from torchserve_client.payloads import Json

SEED = 0
FEWEST = 10  # the fewest inputs that can both calibrate and validate: a quarter of ten is two or three
MOST = 300  # the most inputs that calibrate: NNCF's own default
MOST_VALIDATING = 1000  # the most inputs that validate: 300 of them without near ties support a share of 0.99
HELD_OUT = 0.25  # the least share of the inputs that validate, without --validate
NAMED = 3  # the most inputs that a message names
CROPS = 20  # crops of photographs; a trained ResNet-152 answers them in fp32 in two seconds
SHARES = (0.7, 1.0)  # a crop's side, as a share of the photograph's shorter one: large enough for the subject
KEPT_SIDE = 384  # the side in pixels of a photograph that an archive keeps: larger than most models' input
SUFFIXES = (".jpg", ".jpeg", ".png")
SENTENCES = EXAMPLES / "translation" / "samples.txt"
QUESTION = "Who or what is it about?"  # the question about each sentence

Kind = TypeVar("Kind")


def list_inputs(path: Path) -> list[Input]:
    """List a folder's files, or a file's lines; InvalidConfig if there are none."""
    try:
        found = list(read_inputs(path))
    except InvalidPayload as error:
        raise InvalidConfig(str(error)) from None
    if not found:
        raise InvalidConfig(f"{path}: no inputs in it")
    return found


def draw(inputs: Sequence[Kind], seed: int = SEED) -> list[Kind]:
    """Choose as many inputs as both parts may have, in an order by the seed."""
    return random.Random(seed).sample(inputs, min(len(inputs), MOST + MOST_VALIDATING))  # noqa: S311


def split(inputs: Sequence[Kind]) -> tuple[list[Kind], list[Kind]]:
    """Split shuffled inputs: at most MOST to calibrate with, and the others, at least a quarter, to validate with."""
    count = max(math.ceil(HELD_OUT * len(inputs)), len(inputs) - MOST)
    return list(inputs[count:]), list(inputs[:count])


def make_payload(each: Input, fields: Set[str], *, is_text: bool) -> Payload:
    """Make the payload that a client would send for a file or line."""
    content = each.content()
    if not is_text:
        return Payload(content)
    document = _parse_object(content)
    if document is not None and fields & document.keys():
        return Payload({name: document[name] for name in document if name in fields})
    if len(fields) > 1:
        raise InvalidInput(f"not a JSON object of {' and '.join(sorted(fields))}")
    try:
        return Payload(content.decode())
    except ValueError:
        raise InvalidInput("not UTF-8") from None


def _parse_object(content: bytes) -> Json | None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


class DecodedInput(NamedTuple):
    """An input that the model accepts, and its label, if any: its folder's name, or JSON's "label"."""

    item: Any
    label: object


def decode_inputs(task: Served, inputs: Sequence[Input], *, is_text: bool) -> tuple[list[DecodedInput], list[str]]:
    """Decode inputs by a task's own hooks; return the accepted ones, and a line on each rejected one."""
    accepted: list[DecodedInput] = []
    rejected: list[str] = []
    for each in inputs:
        try:
            (item,) = task.prepare([decode(task, make_payload(each, inputs_of(task).fields, is_text=is_text))])
        except InvalidInput as error:
            item = ItemError.of(error)
        except OSError as error:
            item = ItemError(400, type(error).__name__, error.strerror or "cannot be read")
        if isinstance(item, ItemError):
            rejected.append(f"{each.name}: {item.message}")
        else:
            accepted.append(DecodedInput(item, _read_label(each)))
    return accepted, rejected


def _read_label(each: Input) -> object:
    if isinstance(each.value, Path):
        folder, slash, _ = each.name.partition("/")
        return folder if slash else None
    return (_parse_object(each.content()) or {}).get("label")


def match_labels(inputs: Sequence[DecodedInput], names: Sequence[str]) -> list[int] | None:
    """Return the number of each input's class, by the classes' names or numbers; None if no label is a class."""
    numbers = {str(number): number for number in range(len(names))} | {name: at for at, name in enumerate(names)}
    found = [None if each.label is None else numbers.get(str(each.label)) for each in inputs]
    known = [number for number in found if number is not None]
    if known and len(known) < len(found):
        raise InvalidConfig(
            f"{len(found) - len(known)} of {len(found)} inputs to validate with have no class of the model as their "
            'label: name folders, or "label", by its classes or their numbers; or use inputs without labels'
        )
    return known or None


def describe_rejections(path: Path, count: int, rejected: Sequence[str]) -> str | None:
    """Describe the rejected inputs in one line; None without any; InvalidConfig if the model rejects all inputs."""
    if not rejected:
        return None
    first = "; ".join(rejected[:NAMED]) + ("; ..." if len(rejected) > NAMED else "")
    if len(rejected) == count:
        raise InvalidConfig(f"{path}: the model accepts none of the {count} inputs: {first}")
    return f"{path}: {len(rejected)} of {count} inputs are left out: {first}"


def find_sample_files(model: ModelEntry) -> list[Path]:
    if task_of(model).samples == "images":
        return _find_images(model.folder) or [
            path for folder in sorted(EXAMPLES.iterdir()) for path in _find_images(folder)
        ]
    return [*list_requests(model.folder), SENTENCES]


def make_sample_payloads(model: ModelEntry, fields: Set[str]) -> list[Payload]:
    """Make samples for a model whose inputs have these names."""
    lines = (line.strip() for line in SENTENCES.read_text(encoding="utf-8").splitlines())
    texts = [line for line in lines if line and not line.startswith("#")]
    if task_of(model).samples == "images":
        images = [Payload(body) for body in cut_crops(find_sample_files(model))]
        return [*images, *(Payload({"text": text}) for text in texts if "text" in fields)]
    own = [each for path in list_requests(model.folder) for each in _read_instances(path)]
    if task_of(model).samples == "questions":
        asked = [{"question": QUESTION, "context": text} for text in texts]
        own = [each for each in own if isinstance(each, dict) and {"question", "context"} <= each.keys()]
        return [Payload(each) for each in (*own, *asked)]
    if task_of(model).samples == "pairs":
        return [Payload({"query": QUESTION, "document": text}) for text in texts]
    return [Payload(text) for text in (*(each for each in map(_read_text, own) if each), *texts)]


def make_kept_payloads(model: ModelEntry, fields: Set[str]) -> list[Payload]:
    """Make samples that an archive may contain: this project's texts and photographs, none of the model's folder."""
    payloads = make_sample_payloads(replace(model, folder=EXAMPLES / "none"), fields)
    return [Payload(_shrink(each.value)) if isinstance(each.value, bytes) else each for each in draw(payloads)]


def _shrink(picture: bytes) -> bytes:
    with io.BytesIO() as body:
        Image.open(io.BytesIO(picture)).resize((KEPT_SIDE, KEPT_SIDE)).save(body, "JPEG", quality=90)
        return body.getvalue()


def fit_sample(task: Served, payload: Payload, fits: Callable[[Any], bool] | None = None) -> tuple[Any, Payload] | None:
    """Decode a sample, cut until it fits the model; None if one character is too much."""
    while True:
        try:
            (item,) = task.prepare([decode(task, payload)])
        except InvalidInput as error:
            item = ItemError.of(error)
        if not isinstance(item, ItemError) and (fits is None or fits(item)):
            return item, payload
        value = payload.value
        texts = {"": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
        name = max((one for one in texts if isinstance(texts[one], str)), key=lambda one: len(texts[one]), default="")
        text = str(texts.get(name, ""))
        if len(text) < 2:
            return None
        texts[name] = text[: len(text) // 2].rstrip()
        payload = replace(payload, value=texts[name] if isinstance(value, str) else texts)


def cut_crops(photographs: list[Path]) -> Iterator[bytes]:
    """Cut squares out of photographs in turn, at places and in sizes by a seed; PNG."""
    generator = random.Random(SEED)  # noqa: S311
    pictures = [Image.open(path).convert("RGB") for path in photographs]
    for index in range(CROPS if pictures else 0):
        picture = pictures[index % len(pictures)]
        side = int(min(picture.size) * generator.uniform(*SHARES))
        left, top = (generator.randrange(length - side + 1) for length in picture.size)
        with io.BytesIO() as body:
            picture.crop((left, top, left + side, top + side)).save(body, "PNG", compress_level=1)
            yield body.getvalue()


def _find_images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in SUFFIXES)


def _read_instances(path: Path) -> list[Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise InvalidConfig(f"{path.name}: not valid JSON; a .json file in the model's folder is a request") from None
    if not isinstance(document, dict):
        return []
    found = document.get("instances", [document])
    return found if isinstance(found, list) else []


def _read_text(instance: object) -> str | None:
    text = instance.get("text") if isinstance(instance, dict) else instance
    return text if isinstance(text, str) else None
