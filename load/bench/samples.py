"""What is sent: photographs, texts of mixed length, and sentences; the same in every process."""

import importlib.util
import io
import json
import math
import random
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path

from PIL import Image, ImageOps

from load.inputs import Inputs

# Pixels of a side and quality of a JPEG: a photograph on a web page, some 100 KB.
SIDE, QUALITY = 720, 90
PHOTOGRAPHS = {
    "skimage": ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "motorcycle_left.png"),
    "sklearn": ("china.jpg", "flower.jpg"),
}
FOLDERS = {"skimage": "data", "sklearn": "datasets/images"}

# Texts: four lists of 64. Mean number of tokens with the two special ones: one or two sentences. With this standard
# deviation of its logarithm one text in a hundred has five times the median. The longest fit into MiniLM's 256 tokens.
TEXTS, MEAN_TOKENS, SIGMA, MOST_WORDS = 256, 40, 0.7, 250
# MiniLM's tokenizer has these common words whole, so that a word is a token.
WORDS = (
    *(
        "the",
        "of",
        "to",
        "and",
        "in",
        "that",
        "it",
        "was",
        "for",
        "on",
        "with",
        "as",
        "by",
        "from",
        "this",
        "have",
        "not",
    ),
    *("house", "country", "week", "company", "system", "night", "room", "mother", "money", "story", "school", "water"),
)

CLAUSES = (
    "The weather is nice today.",
    "We are going to the beach with our friends.",
    "The central bank left its interest rate unchanged on Thursday.",
    "She bought bread.",
    "Nobody knew why the train to Paris had stopped in the middle of the night.",
    "The children were asleep.",
    "He read the letter twice and put it back into the drawer without a word.",
    "Prices rose by two percent.",
)
# Sentences of a text for translation, short ones more often.
LENGTHS = (1, 1, 2, 1, 3, 1, 2, 6)


@cache
def photographs(side: int = SIDE) -> tuple[bytes, ...]:
    """Make square JPEGs of the photographs that come with scikit-image and scikit-learn."""
    return tuple(_jpeg(_folder(package) / name, side) for package, names in PHOTOGRAPHS.items() for name in names)


def _folder(package: str) -> Path:
    # The package is found but not imported, since only its data files are wanted.
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed; it holds the photographs", name=package)
    return Path(spec.submodule_search_locations[0]) / FOLDERS[package]


def _jpeg(path: Path, side: int) -> bytes:
    with Image.open(path) as image, io.BytesIO() as body:
        ImageOps.fit(image.convert("RGB"), (side, side)).save(body, "JPEG", quality=QUALITY)
        return body.getvalue()


@cache
def texts() -> tuple[str, ...]:
    """Make texts of words in no sensible order; an encoder takes as long for them as for others."""
    chance = random.Random(0)
    # A lognormal distribution has the mean exp(mu + sigma^2 / 2).
    mu = math.log(MEAN_TOKENS) - SIGMA**2 / 2
    lengths = (min(MOST_WORDS, max(1, round(chance.lognormvariate(mu, SIGMA)) - 2)) for _ in range(TEXTS))
    return tuple(" ".join(chance.choices(WORDS, k=length)) for length in lengths)


def sentences(count: int) -> list[str]:
    """Make texts for translation, of one to six sentences."""
    return [
        " ".join(CLAUSES[(3 * start + index) % len(CLAUSES)] for index in range(LENGTHS[start % len(LENGTHS)]))
        for start in range(count)
    ]


def images() -> Inputs:
    """Make requests of one photograph each."""
    return Inputs.of(photographs(), "image/jpeg")


def singles(of: Sequence[str]) -> Inputs:
    """Make requests of one text each."""
    return Inputs.of([json.dumps({"text": text}).encode() for text in of], "application/json")


def lists(of: Sequence[str], length: int) -> Inputs:
    """Make requests of `length` texts each."""
    rest = iter(of)
    bodies = [json.dumps({"instances": [*islice(rest, length)]}).encode() for _ in range(len(of) // length)]
    return Inputs.of(bodies, "application/json")
