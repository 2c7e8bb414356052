"""A gateway that requires a key, in front of a stand-in that answers as the handlers of each task do."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

from deploy import sandbox
from handlers.vision.encoding import encode_map
from tests.deploy.gateway.envoy.stand_ins import METADATA, StandIn, described
from tests.nightly.page.browser import KEY, Visit, chromium, visit

TIMING = 'decode;dur=1.61, wait;dur=2.40, forward;dur=11.20, encode;dur=0.04, batch;desc="8"'
TOP_K = {"top_k": {"type": "integer", "minimum": 1, "default": 5, "description": "the most <b>labels</b>."}}
BEAMS = {"tgt_lang": {"type": "string"}, "num_beams": {"type": "integer"}, "early_stopping": {"type": "boolean"}}
TEXTS, JSON = ["text/plain", "application/json"], ["application/json"]
CAT = {"Egyptian cat": 0.6123, "tabby": 0.2011, "tiger cat": 0.0874}
FRENCH = [{"label": "fr", "score": 0.9871}, {"label": "oc", "score": 0.0042}]
ADA = {"entity_group": "PER", "score": 0.99, "word": "Ada", "start": 4, "end": 7}
SPAN = {"answer": "Ada Lovelace", "score": 0.9123, "start": 13, "end": 25}
RANKED = (0.021, 0.937, 0.004)
BOXES = [
    {"label": "cat", "score": 0.93, "box": {"xmin": 40, "ymin": 20, "xmax": 420, "ymax": 280}},
    {"label": "sofa", "score": 0.61, "box": {"xmin": 0, "ymin": 180, "xmax": 440, "ymax": 300}},
]
# Its left half is class 3, its right half class 8.
HALVES = np.where(np.arange(60) < 30, np.uint8(3), np.uint8(8))[None].repeat(40, axis=0)
SEGMENTS = [{"label": "sofa", "score": 0.8, "value": 3}, {"label": "cat", "score": 0.93, "value": 8}]
# Model -> its task, what it accepts, its options, and its answer.
MODELS: dict[str, tuple[str, list[str], dict[str, Any], Any]] = {
    "resnet-152": ("image_classification", ["image/*", "application/json"], TOP_K, CAT),
    "object-detection": ("object_detection", ["image/*", "application/json"], {}, BOXES),
    "image-segmentation": (
        "image_segmentation",
        ["image/*", "application/json"],
        {},
        {"segments": SEGMENTS, "map": encode_map(HALVES)},
    ),
    "language-id": ("language_id", TEXTS, TOP_K, FRENCH),
    "text-classification": ("text_classification", TEXTS, {}, [{"label": "POSITIVE", "score": 0.9997}]),
    "token-classification": ("token_classification", TEXTS, {}, [ADA]),
    "question-answering": ("question_answering", TEXTS, {}, SPAN),
    "sentence-embedding": ("sentence_embedding", TEXTS, {}, [0.5, -0.5, 0.5, 0.5]),
    "reranking": ("reranking", ["application/json"], {}, {"predictions": [{"score": score} for score in RANKED]}),
    "translation": ("translation", TEXTS, BEAMS, {"translation_text": "Où est la gare ?"}),
    "ragged": ("tensors", JSON, {}, {"vectors": [[0.5, None], [1.0, -1.0]]}),
    "photographs": ("tensors", JSON, {}, {"outputs": {"y": [0.5, 0.25]}}),
}
INPUTS = {
    "ragged": [
        {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "words", "datatype": "BYTES", "shape": [-1, 2]},
        {"name": "sizes", "datatype": "UINT8", "shape": [2, -1], "batch_dim": 1},
    ],
    "photographs": [{"name": "pixels", "datatype": "FP32", "shape": [-1, 3, 224, 224]}],
}


def answers() -> dict[str, tuple[int, dict[str, str], bytes]]:
    headers = {"Content-Type": "application/json", "Server-Timing": TIMING}
    said = {**{name: answer for name, (*_, answer) in MODELS.items()}, "colours": {"red": [1, 2.5, -3]}}
    found = {f"/predictions/{name}": (200, headers, json.dumps(answer).encode()) for name, answer in said.items()}
    return {**found, "/predictions/resnet-152/2.0": found["/predictions/resnet-152"]}


@pytest.fixture(scope="module")
def behind() -> Iterator[tuple[StandIn, str]]:
    """A node of each task, two of two versions, one without metadata, one without workers; and its URL."""
    node = StandIn("node-1", [*MODELS, "resnet-152/2.0", "colours"])
    node.models["idle"] = [described("idle", workers=0, ready=0)]
    node.models["text-classification"] = [
        described("text-classification"),
        described("text-classification", "2.0", ready=0),
    ]
    for name, (task, accepts, options, _) in MODELS.items():
        said = {"task": task, "accepts": accepts, "options": options, "inputs": INPUTS.get(name, METADATA["inputs"])}
        node.metadata[name] = {**METADATA, **said}
    node.metadata["colours"] = None
    keys, canaries = [{"client": "page", "key": KEY}], {"resnet-152": {"version": "2.0", "percent": 5}}
    with sandbox.run_gateway([node.node], keys=keys, canaries=canaries) as gateway:
        yield node, gateway.http
    node.close()


@pytest.fixture
def node(behind: tuple[StandIn, str]) -> StandIn:
    """As it was at first."""
    made, _ = behind
    made.do, made.metrics, made.answers = "", "", answers()
    made.bodies.clear()
    made.seen.clear()
    return made


@pytest.fixture
def url(behind: tuple[StandIn, str]) -> str:
    return behind[1]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """End with the module: while playwright runs, this thread has an event loop, and no other test can run one."""
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Browser, node: StandIn, url: str) -> Iterator[Visit]:
    with visit(browser, url) as made:
        made.use_key()
        yield made
        assert made.page.evaluate("window.violations") == []
