"""Canaries without a model: the answer to {"text": T} is [{"label": T, "score": 1.0}], which a server may get wrong."""

import json
from typing import Any

from load.generate.inputs import Input
from load.soak.canaries import Canaries, Canary
from load.soak.models import Subject

MODEL = "m"
SUBJECT = Subject(MODEL, "language_id", "classic", 1)


def answer_to(text: str) -> list[dict[str, Any]]:
    """What a model would say of it."""
    return [{"label": text, "score": 1.0}]


def canary(text: str) -> Canary:
    """One input and its answer."""
    return Canary(Input(json.dumps({"text": text}).encode(), "application/json"), answer_to(text), 0.001)


def canaries(count: int = 12) -> Canaries:
    """So many of one model."""
    return Canaries({MODEL: [canary(f"text {number}") for number in range(count)]})


def answer_of(body: bytes) -> Any:
    """The right answer to a body, a list's too."""
    asked = json.loads(body)
    if "instances" in asked:
        return {"predictions": [answer_to(each["text"]) for each in asked["instances"]]}
    return answer_to(asked["text"])
