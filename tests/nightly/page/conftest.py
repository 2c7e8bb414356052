"""The page in Debian's Chromium, on a gateway with a key, and a stand-in that answers as each task's handler does."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from deploy.archives.tasks import task_class
from deploy.models import ROOT
from handlers.pipeline.task import inputs_of
from handlers.vision.images import encode_map
from load import sandbox
from tests.deploy.gateway.envoy.stand_ins import METADATA, StandIn, described
from tests.e2e.conftest import printed

# For a machine that stalls: what is waited for comes at once otherwise.
TIMEOUT_MS = 30_000
expect.set_options(timeout=TIMEOUT_MS)
KEY = "a-key-of-sixteen-or-more"
LISTEN = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""
TIMING = 'decode;dur=1.61, wait;dur=2.40, forward;dur=11.20, encode;dur=0.04, batch;desc="8"'
TOP_K = {"top_k": {"type": "integer", "minimum": 1, "default": 5, "description": "the most <b>labels</b>."}}
BEAMS = {"tgt_lang": {"type": "string"}, "num_beams": {"type": "integer"}, "early_stopping": {"type": "boolean"}}
IMAGES, TEXTS, JSON = ["image/*", "application/json"], ["text/plain", "application/json"], ["application/json"]
CAT = {"Egyptian cat": 0.6123, "tabby": 0.2011, "tiger cat": 0.0874}
FRENCH = [{"label": "fr", "score": 0.9871}, {"label": "oc", "score": 0.0042}]
ADA = {"entity_group": "PER", "score": 0.99, "word": "Ada", "start": 4, "end": 7}
SPAN = {"answer": "Ada Lovelace", "score": 0.9123, "start": 13, "end": 25}
BOXES = [
    {"label": "cat", "score": 0.93, "box": {"xmin": 40, "ymin": 20, "xmax": 420, "ymax": 280}},
    {"label": "sofa", "score": 0.61, "box": {"xmin": 0, "ymin": 180, "xmax": 440, "ymax": 300}},
]
# Its left half is class 3, its right half class 8.
HALVES = np.where(np.arange(60) < 30, np.uint8(3), np.uint8(8))[None].repeat(40, axis=0)
SEGMENTS = [{"label": "sofa", "score": 0.8, "value": 3}, {"label": "cat", "score": 0.93, "value": 8}]
# Model -> its task, what it accepts, its options, and its answer.
MODELS: dict[str, tuple[str, list[str], dict[str, Any], Any]] = {
    "resnet-152": ("image_classification", IMAGES, TOP_K, CAT),
    "object-detection": ("object_detection", IMAGES, {}, BOXES),
    "image-segmentation": ("image_segmentation", IMAGES, {}, {"segments": SEGMENTS, "map": encode_map(HALVES)}),
    "language-id": ("language_id", TEXTS, TOP_K, FRENCH),
    "text-classification": ("text_classification", TEXTS, {}, [{"label": "POSITIVE", "score": 0.9997}]),
    "token-classification": ("token_classification", TEXTS, {}, [ADA]),
    "question-answering": ("question_answering", TEXTS, {}, SPAN),
    "sentence-embedding": ("sentence_embedding", TEXTS, {}, [0.5, -0.5, 0.5, 0.5]),
    "reranking": ("reranking", JSON, {}, {"predictions": [{"score": score} for score in (0.021, 0.937, 0.004)]}),
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


@dataclass
class Visit:
    """A page, and what it did."""

    page: Page
    url: str
    asked: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def use_key(self, key: str = KEY) -> None:
        self.write(key, "Key")
        self.page.get_by_role("button", name="Use key").click()

    def show(self, model: str) -> None:
        """Show a model; what was typed for it before is kept."""
        self.page.goto(f"{self.url}/#/{model}")
        self.page.wait_for_selector(f'main h2:text-is("{model}")')

    def fill(self, label: str, text: str) -> None:
        self.page.get_by_label(label).fill(text)

    def write(self, text: str, box: str = "Text") -> None:
        self.page.get_by_role("textbox", name=box).fill(text)

    def run(self) -> str:
        """Press Run; return the answer's text once it is there."""
        self.page.get_by_role("button", name="Run").click()
        # Not by a script: the page's policy lets no text become one.
        self.page.locator(".answer:not([aria-busy]):not(:has(> .empty:only-child))").wait_for()
        return self.page.get_by_role("region", name="Response").inner_text()

    def choose(self, file: Path) -> None:
        self.page.get_by_label("Photograph").set_input_files(file)

    def call(self, name: str) -> str:
        return self.page.get_by_label(name, exact=True).text_content() or ""

    def curl(self, folder: Path = ROOT) -> Any:
        return json.loads(_run(["bash", "-c", self.call("curl")], folder))

    def python(self, folder: Path = ROOT) -> str:
        return _run([sys.executable, "-c", self.call("Python")], folder)

    def assert_calls(self, answer: Any, folder: Path = ROOT) -> None:
        """Fail unless the copied calls print an answer."""
        assert (self.curl(folder), self.python(folder)) == (answer, str(answer))


def _run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "no_proxy": "*", "PYTHONPATH": str(ROOT / "client"), "KEY": KEY}
    return printed(*command, cwd=folder, env=environment).strip()


@contextmanager
def visit(browser: Browser, url: str) -> Iterator[Visit]:
    """Open a page in a new profile; fail on an error, a request to another host or a violation of the page's policy."""
    context = browser.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    context.add_init_script(LISTEN)
    made = Visit(context.new_page(), url)
    made.page.on("request", lambda request: made.asked.append(request.url))
    made.page.on("console", lambda said: made.errors.append(said.text) if said.type in ("error", "warning") else None)
    made.page.on("pageerror", lambda error: made.errors.append(str(error)))
    made.page.goto(url)
    yield made
    # The browser notes each answer that is an error: the first question, without a key, and those that a test wants.
    assert [error for error in made.errors if "Failed to load resource" not in error] == []
    assert [asked for asked in made.asked if not asked.startswith((url, f"blob:{url}"))] == []
    assert made.page.evaluate("window.violations") == []
    context.close()


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
    texts = "text-classification"
    node.models[texts] = [described(texts), described(texts, "2.0", ready=0)]
    for name, (task, accepts, options, _) in MODELS.items():
        own = task_class(task)
        texts_in = [{"name": each, "datatype": "BYTES", "shape": [-1, 1]} for each in sorted(inputs_of(own).fields)]
        inputs = INPUTS.get(name) or (METADATA["inputs"] if accepts == IMAGES else texts_in)
        said = {"task": task, "accepts": accepts, "options": options, "inputs": inputs}
        node.metadata[name] = {**METADATA, **said, "api": own.results.api, "view": own.results.view}
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
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser, node: StandIn, url: str) -> Iterator[Visit]:
    with visit(browser, url) as made:
        made.use_key()
        yield made
