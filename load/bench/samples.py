"""Inputs: photographs, texts of mixed length, and sentences; equal in every process."""

import io
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from PIL import Image, ImageOps

from deploy.models import ROOT
from load.inputs import Inputs

# Photographs as on a web page, some 100 KB.
SIDE = 720  # pixels of a side
QUALITY = 90  # JPEG quality
PHOTOGRAPHS = ("resnet-152/cat.jpg", "mobilenet-v2/espresso.jpg")
# Places of each, a pixel apart: more photographs than clients, since equal ones that wait together run once.
SHIFTS = 16
TEXTS = 256  # four lists of 64
MEAN_WORDS = 32  # one or two sentences
SIGMA = 0.7  # of the logarithm of the number of words: 1 % of the texts have five times the median
MOST_WORDS = 200  # fit into MiniLM's 256 tokens
LENGTHS = (1, 1, 2, 1, 3, 1, 2, 6)  # sentences per text for translation, mostly few
SENTENCES = ROOT / "examples" / "translation" / "samples.txt"


@cache
def photographs(side: int = SIDE) -> tuple[bytes, ...]:
    """Make square JPEGs of the examples' photographs and their mirror images, from several places."""
    bodies, most = [], side + SHIFTS - 1
    for name in PHOTOGRAPHS:
        with Image.open(ROOT / "examples" / name) as image:
            square = ImageOps.fit(image.convert("RGB"), (most, most))
        for each in (square, ImageOps.mirror(square)):
            for shift in range(SHIFTS):
                with io.BytesIO() as body:
                    each.crop((shift, shift, shift + side, shift + side)).save(body, "JPEG", quality=QUALITY)
                    bodies.append(body.getvalue())
    return tuple(bodies)


@cache
def sentences() -> tuple[str, ...]:
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


@cache
def texts() -> tuple[str, ...]:
    """Make texts of random words, which take an encoder as long as sentences."""
    chance, words = random.Random(0), " ".join(sentences()).split()
    mu = math.log(MEAN_WORDS) - SIGMA**2 / 2  # a lognormal distribution has the mean exp(mu + sigma^2 / 2)
    lengths = (min(MOST_WORDS, max(1, round(chance.lognormvariate(mu, SIGMA)))) for _ in range(TEXTS))
    return tuple(" ".join(chance.choices(words, k=length)) for length in lengths)


def paragraphs(count: int) -> list[str]:
    """Make texts of one to six sentences for translation."""
    lengths = [LENGTHS[number % len(LENGTHS)] for number in range(count)]
    every = sentences()
    return [" ".join(every[(7 * number + at) % len(every)] for at in range(n)) for number, n in enumerate(lengths)]


def images() -> Inputs:
    return Inputs.of(photographs(), "image/jpeg")


def singles(texts: Sequence[str]) -> Inputs:
    return json_inputs({"text": text} for text in texts)


def lists(texts: Sequence[str], length: int) -> Inputs:
    return json_inputs({"instances": texts[at : at + length]} for at in range(0, len(texts), length))


def json_inputs(bodies: Iterable[Mapping[str, object]]) -> Inputs:
    return Inputs.of([json.dumps(body).encode() for body in bodies], "application/json")
