"""A gateway without servers behind it, for the page: all seven tasks, answered in the handlers' own forms.

    Site(key) -> a thread with an event loop: the page's routes, and /predictions answered from ANSWERS

The answers were recorded from the handlers; tests/deploy/gateway/test_page_served.py tries the page on a real server.
"""

import asyncio
import json
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from aiohttp import web

from deploy.gateway import page_routes
from deploy.gateway.state import Canary, Fleet, Model, Replica, Version
from deploy.gateway.summary import Summary
from deploy.nodes.node import Node

SCORES = [0.6123, 0.2011, 0.0874, 0.0412, 0.0109]
PHOTOGRAPH = dict(zip(["Egyptian cat", "tabby", "tiger cat", "lynx", "Persian cat"], SCORES, strict=True))
EMBEDDING = [round(math.sin(index * 1.7) * math.cos(index / 9) / 14, 6) for index in range(384)]
ENTITIES = [
    {"entity_group": "PER", "score": 0.9988, "word": "Ada Lovelace", "start": 0, "end": 12},
    {"entity_group": "PER", "score": 0.9981, "word": "Charles Babbage", "start": 17, "end": 32},
    {"entity_group": "LOC", "score": 0.9993, "word": "London", "start": 36, "end": 42},
]
TOP_K = {"top_k": {"type": "integer", "minimum": 1, "default": 5, "description": "the most labels of its answer."}}


class Canned(NamedTuple):
    """A model of the fleet: what its handler would say of itself, and answer."""

    task: str
    inputs: tuple[str, ...]
    outputs: Mapping[str, tuple[str, list[int]]]
    options: Mapping[str, Any]
    answer: Any


LABELS: Mapping[str, tuple[str, list[int]]] = {"label": ("BYTES", [-1, -1]), "score": ("FP32", [-1, -1])}
SPANS = {
    "answer": ("BYTES", [-1, -1]),
    "score": ("FP32", [-1, -1]),
    "start": ("INT64", [-1, -1]),
    "end": ("INT64", [-1, -1]),
}
MODELS: Mapping[str, Canned] = {
    "resnet-152": Canned("image_classification", ("image",), LABELS, TOP_K, PHOTOGRAPH),
    "language-id": Canned(
        "language_id",
        ("text",),
        LABELS,
        {
            **TOP_K,
            "threshold": {"type": "number", "default": 0.0, "description": "the least score of a label"},
            "label_prefix": {"type": "boolean", "default": False},
        },
        [{"label": "fr", "score": 0.9871}, {"label": "oc", "score": 0.0042}],
    ),
    "text-classification": Canned(
        "text_classification",
        ("text",),
        LABELS,
        TOP_K,
        [{"label": "POSITIVE", "score": 0.9997}, {"label": "NEGATIVE", "score": 0.0003}],
    ),
    "token-classification": Canned(
        "token_classification",
        ("text",),
        {"result": ("BYTES", [-1])},
        {"aggregation": {"type": "string", "enum": ["none", "simple", "first", "average", "max"], "default": "simple"}},
        ENTITIES,
    ),
    "question-answering": Canned(
        "question_answering",
        ("question", "context"),
        SPANS,
        {"top_k": {"type": "integer", "default": 1}, "align_to_words": {"type": "boolean", "default": True}},
        {"answer": "Ada Lovelace", "score": 0.9123, "start": 13, "end": 25},
    ),
    "sentence-embedding": Canned("sentence_embedding", ("text",), {"embedding": ("FP32", [-1, 384])}, {}, EMBEDDING),
    "translation": Canned(
        "translation",
        ("text",),
        {"translation_text": ("BYTES", [-1])},
        {
            "src_lang": {"type": "string", "default": None},
            "tgt_lang": {"type": "string", "default": None, "description": "the language, as the model's own code"},
            "num_beams": {"type": "integer", "default": 1},
            "early_stopping": {"type": "boolean", "default": None},
        },
        {"translation_text": "Où est la gare ?"},
    ),
}


def metadata(name: str, version: str = "1.0") -> dict[str, Any]:
    """What a handler says of itself."""
    model = MODELS[name]
    return {
        "name": name,
        "version": version,
        "platform": "torchserve_openvino",
        "task": model.task,
        "mode": "classic",
        "inputs": [{"name": each, "datatype": "BYTES", "shape": [-1]} for each in model.inputs],
        "outputs": [{"name": each, "datatype": kind, "shape": shape} for each, (kind, shape) in model.outputs.items()],
        "max_batch_size": 64,
        "max_instances": 64,
        "options": dict(model.options),
        "accepts": ["image/*", "application/json"]
        if model.inputs == ("image",)
        else ["text/plain", "application/json"],
    }


TENSOR_MODELS: Mapping[str, tuple[list[dict[str, Any]], list[dict[str, Any]], Any]] = {
    # Inputs, outputs, and the answer to one row.
    "mnist": (
        [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 28, 28]}],
        [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}],
        {"logits": [-4.25, -3.5, 0.125, 2.0, -6.5, -1.25, -9.0, 11.75, -2.5, 1.5]},
    ),
    "ragged": (
        [
            {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
            {"name": "is_long", "datatype": "BOOL", "shape": [-1]},
            {"name": "words", "datatype": "BYTES", "shape": [-1, 2]},
            {"name": "sizes", "datatype": "UINT8", "shape": [2, -1], "batch_dim": 1},
        ],
        [{"name": "vectors", "datatype": "BF16", "shape": [-1, -1, 2]}],
        {"vectors": [[0.5, None], [1.0, -1.0]]},
    ),
    # A function that declares nothing, whose input has the name of a form of requests.
    "anything": ([{"name": "inputs", "datatype": "ANY", "shape": [-1]}], [], {"y": [0.0, 0.1]}),
    "photographs": (
        [{"name": "pixels", "datatype": "FP32", "shape": [-1, 3, 224, 224]}],
        [{"name": "y", "datatype": "FP32", "shape": [-1]}],
        {"outputs": {"y": [0.5, 0.25]}},
    ),
}


def tensors_metadata(name: str) -> dict[str, Any]:
    """What a handler of a model of tensors says of itself."""
    inputs, outputs, _ = TENSOR_MODELS[name]
    return {
        "name": name,
        "version": "1",
        "platform": "torchserve_function",
        "task": "tensors",
        "mode": "classic",
        "inputs": inputs,
        "outputs": outputs,
        "max_batch_size": 16,
        "max_instances": 16,
        "options": {},
        "accepts": ["application/x-npy", "application/x-npz", "application/json"],
    }


def tensor_fleet() -> Fleet:
    """A node with models of tensors alone."""
    on = {"node-0": replica()}
    models = {name: Model(name, {"1": Version("1", on, tensors_metadata(name))}, "1") for name in TENSOR_MODELS}
    return Fleet(nodes={"node-0": node("node-0")}, models=models)


def node(name: str) -> Node:
    return Node(
        name=name, inference="http://127.0.0.1:1", management="http://127.0.0.1:2", metrics="http://127.0.0.1:3"
    )


def replica(*, workers: int = 1, ready: int = 1, is_default: bool = True) -> Replica:
    return Replica(workers, ready, 8, 20, is_default)


def fleet() -> Fleet:
    """Two nodes and a model of each task: one of two versions, with a canary, one not whole; one without workers."""
    both = {"node-0": replica(), "node-1": replica()}
    models = {name: Model(name, {"1.0": Version("1.0", both, metadata(name))}, "1.0") for name in MODELS}
    newer = Version("2.0", {"node-1": replica(is_default=False)}, metadata("resnet-152", "2.0"))
    models["resnet-152"] = Model("resnet-152", {**models["resnet-152"].versions, "2.0": newer}, "1.0")
    partly = Version("1.0", {"node-0": replica(), "node-1": replica(workers=2)}, metadata("text-classification"))
    models["text-classification"] = Model("text-classification", {"1.0": partly}, "1.0")
    models["colours"] = Model("colours", {"1.0": Version("1.0", {"node-0": replica(workers=0, ready=0)})}, "1.0")
    return Fleet(
        nodes={name: node(name) for name in ("node-0", "node-1")},
        models=models,
        canaries={"resnet-152": Canary("2.0", 5.0)},
    )


class Series(NamedTuple):
    """As deploy.gateway.scrape has them."""

    name: str
    labels: frozenset[tuple[str, str]]


def series(name: str, model: str, **labels: str) -> Series:
    label = "model_name" if name.startswith("ts_") else "ModelName"
    return Series(name, frozenset({label: model, **labels}.items()))


@dataclass
class Counters:
    """Counters of a node as traffic would make them grow: so many requests a second in micro-batches of four."""

    values: dict[Series, float] = field(default_factory=dict)

    def add(self, model: str, requests: float, seconds: float, *, refused: float = 0.0) -> None:
        batches = requests / 4
        bounds = ("0.01", "0.025", "0.05", "0.1", "0.25", "+Inf")
        fast = dict(zip(bounds, [r * requests for r in (0, 0.2, 0.7, 0.96, 1, 1)], strict=True))
        for name, value in {
            "handler_items_total": requests,
            "ts_inference_requests_total": requests,
            "ts_queue_latency_microseconds": requests * 3000,
            "handler_batch_size_sum": requests,
            "handler_batch_size_count": batches,
            "handler_queue_depth_sum": requests * 2,
            "handler_queue_depth_count": batches,
            "handler_wait_seconds_sum": requests * 0.004,
            "handler_wait_seconds_count": requests,
        }.items():
            self._grow(series(name, model), value)
        for bound, value in fast.items():
            self._grow(series("handler_forward_seconds_bucket", model, le=bound), value)
        for bound, share in (("1", 0.1), ("2", 0.25), ("4", 0.5), ("8", 0.95), ("16", 1.0), ("+Inf", 1.0)):
            self._grow(series("handler_batch_size_bucket", model, le=bound), batches * share)
        if refused:
            self._grow(series("handler_refusals_total", model, Reason="Overloaded"), refused * seconds)
            self._grow(series("handler_item_errors_total", model, Type="Overloaded"), refused * seconds)

    def _grow(self, key: Series, value: float) -> None:
        self.values[key] = self.values.get(key, 0.0) + value


def five_minutes(summary: Summary, served: Fleet) -> None:
    """Let a summary see five minutes of traffic that rises and falls."""
    counters = Counters()
    for second in range(0, 302, 2):
        rate = 24 + 14 * math.sin(second / 40) + 5 * math.sin(second / 7)
        for index, name in enumerate(served.models):
            if name != "colours":
                counters.add(name, rate * 2 / (1 + index / 2), 2, refused=2.5 if 150 < second < 200 else 0)
        summary.observe(1000.0 + second, served, {"node-0": dict(counters.values)})


class Site:
    """The page on a free port, in a thread of its own.

    Attributes:
        url: where it is.
        requests: method and path of everything that was asked.
        bodies: content type and body of what was asked of /predictions.
        answers: what each model answers.
        key: what a client must send, or None.
        failure: the status and body that /predictions answers instead, or None.
        headers: of that answer.
        pieces: what /predictions sends instead of an answer, each once its event is set, as application/x-ndjson.
        served: the fleet, which a test may replace.
    """

    def __init__(self, served: Fleet | None = None, *, key: str | None = None) -> None:
        self.served = fleet() if served is None else served
        self.key = key
        self.failure: tuple[int, Any] | None = None
        self.headers: dict[str, str] = {}
        self.pieces: list[tuple[threading.Event, bytes]] = []
        self.requests: list[str] = []
        self.bodies: list[tuple[str, bytes]] = []
        self.answers: dict[str, Any] = {name: model.answer for name, model in MODELS.items()}
        self.summary = Summary()
        five_minutes(self.summary, self.served)
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(middlewares=[self._guard], client_max_size=32 << 20)
        page_routes.add_routes(app, self.summary, lambda: self.served)
        app.router.add_post("/predictions/{model}", self._predict)
        app.router.add_put("/predictions/{model}", self._predict)
        app.router.add_post("/predictions/{model}/{version}", self._predict)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        _, port = self._runner.addresses[0][:2]
        self.url = f"http://127.0.0.1:{port}"

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Ask for the key where Envoy does: for all but the page's own files."""
        self.requests.append(f"{request.method} {request.path}")
        is_open = request.path == "/" or request.path.startswith("/page/")
        if self.key and not is_open and request.headers.get("Authorization") != f"Bearer {self.key}":
            said = {"code": 401, "type": "Unauthorized", "message": "A key is needed: Authorization: Bearer KEY."}
            return web.json_response(said, status=401)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _predict(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append((request.content_type, await request.read()))
        if self.failure is not None:
            status, body = self.failure
            text = body if isinstance(body, str) else json.dumps(body)
            return web.Response(status=status, text=text, headers=self.headers)
        if self.pieces:
            return await self._stream(request)
        answer = self.answers[request.match_info["model"]]
        timing = 'decode;dur=1.61, wait;dur=2.40, forward;dur=11.20, encode;dur=0.04, batch;desc="8"'
        return web.json_response(answer, headers={"Server-Timing": timing})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        for event, piece in self.pieces:
            await asyncio.to_thread(event.wait, 60)
            await response.write(piece)
        await response.write_eof()
        return response
