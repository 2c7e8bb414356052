"""The inputs that a precision is held against fp32 with where its user gives none: those of the examples.

photographs of the model's folder, or else of examples/ -> crops by a seed -> payloads
requests of the model's folder, sample sentences        -> texts           -> payloads
"""

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from deploy.build.precision.wanted import IMAGES, QUESTIONS
from deploy.models import MODEL_LIST, Model
from handlers.protocol.requests import Payload

SEED = 0
# So many crops of photographs; they take a trained ResNet-152 two seconds in fp32.
CROPS = 20
# A crop's side, as a share of the photograph's shorter one: what is photographed stays in it.
SHARES = (0.7, 1.0)
SUFFIXES = (".jpg", ".jpeg", ".png")
EXAMPLES = MODEL_LIST.parent
SENTENCES = EXAMPLES / "translation" / "samples.txt"
# Asked of each sentence, so that a model has more than one question to answer.
QUESTION = "Who or what is it about?"


def files(model: Model) -> list[Path]:
    """Find the files that a model's samples are made from."""
    if model.handler in IMAGES:
        return _images(model.folder) or [path for folder in sorted(EXAMPLES.iterdir()) for path in _images(folder)]
    return [*_requests(model.folder), SENTENCES]


def payloads(model: Model) -> list[Payload]:
    """Make a model's samples."""
    if model.handler in IMAGES:
        return [Payload(body) for body in crops(files(model))]
    lines = (line.strip() for line in SENTENCES.read_text(encoding="utf-8").splitlines())
    texts = [line for line in lines if line and not line.startswith("#")]
    own = [each for path in _requests(model.folder) for each in _instances(path)]
    if model.handler in QUESTIONS:
        asked = [{"question": QUESTION, "context": text} for text in texts]
        return [Payload(each) for each in (*filter(_is_question, own), *asked)]
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
