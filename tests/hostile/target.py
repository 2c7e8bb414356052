"""A worker of TorchServe in this process: the real handler of a tiny model, behind what the frontend hands over.

Request -> retrieve_data_for_inference (TorchServe's own) -> handle -> Response, in the order of the requests
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from openvino import opset13 as opset
from ts.service import Service

from deploy.archives.sources import source
from deploy.archives.tasks import language_id
from deploy.models import model
from handlers.base import BatchHandler
from handlers.tasks.image_classification import ImageClassificationHandler
from handlers.tasks.language_id import LanguageIdHandler
from handlers.tasks.text_classification import TextClassificationHandler
from handlers.vision.preprocessing import Preprocessing, to_levels
from tests import graphs, tiny_models
from tests.handlers.serving import started
from tests.hostile.requests import Request

SIDE, CLASSES = 32, 7
# Limits that a request reaches soon; fp32, so that an answer among others is the one alone to many digits.
LIMITS: dict[str, Any] = {"decode_threads": 2, "max_request_items": 8, "max_body_bytes": 64 * 1024}
ENGINE: dict[str, Any] = {"precision": "fp32", "threads": 1}


# A handler, what its archive holds, and its settings.
Staged = tuple[BatchHandler[Any, Any], Path, dict[str, Any]]


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float


class Target:
    def __init__(self, task: str, folder: Path) -> None:
        handler, staged, settings = STAGED[task](folder)
        self._handler = started(handler, staged, settings)

    def answer(self, requests: Sequence[Request], *, decodes: bool) -> list[Response]:
        """Answer requests as one batch."""
        context = self._handler.worker_context
        processors, rows, ids = Service.retrieve_data_for_inference(
            [_handed_over(number, request, decodes=decodes) for number, request in enumerate(requests)]
        )
        context.request_ids, context.request_processor = ids, processors
        began = time.monotonic()
        bodies = self._handler.handle(rows, context)
        seconds = time.monotonic() - began
        assert len(bodies) == len(requests)
        return [
            Response(context.get_response_status(index)[0], context.get_response_headers(index), bytes(body), seconds)
            for index, body in enumerate(bodies)
        ]


def _handed_over(number: int, request: Request, *, decodes: bool) -> dict[str, Any]:
    parameters = []
    for part in request.parts:
        value: Any = bytearray(part.value)
        if decodes and part.content_type == "application/json":
            try:
                value = json.loads(part.value)
            except (ValueError, RecursionError):
                pass  # TorchServe hands over the bytes.
        parameters.append({"name": part.name, "contentType": part.content_type, "value": value})
    pairs = {"Content-Type": request.parts[0].content_type, **request.headers}
    headers = [{"name": name.encode(), "value": value.encode()} for name, value in pairs.items() if value]
    return {"requestId": str(number).encode(), "headers": headers, "parameters": parameters}


def _texts(folder: Path) -> Staged:
    staged = tiny_models.staged(folder, "bert", "text_classification", labels=("bad", "fair", "good"), engine="torch")
    return TextClassificationHandler(), staged, {**LIMITS, **ENGINE, "engine": "torch", "max_characters": 2000}


def _images(folder: Path) -> Staged:
    """A convolution and a head: pixels (B, SIDE, SIDE, 3) -> logits (B, CLASSES)."""
    torch.manual_seed(3)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, stride=3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 10 * 10, CLASSES)
    )
    seen = Preprocessing(SIDE + 4, (SIDE, SIDE), "bilinear", to_levels((0.5, 0.5, 0.5)), to_levels((0.25, 0.25, 0.25)))
    seen.write(folder)
    pixels = opset.parameter([-1, SIDE, SIDE, 3], np.uint8)
    levels = (np.array(each, np.float32) for each in (seen.mean, seen.std))
    normalised = opset.divide(opset.subtract(opset.convert(pixels, "f32"), next(levels)), next(levels))
    logits = graphs.follow(network, opset.transpose(normalised, [0, 3, 1, 2]))
    graphs.save(logits, pixels, ("pixels", "logits"), folder / "model.xml")
    (folder / "index_to_name.json").write_text(json.dumps({str(index): f"label {index}" for index in range(CLASSES)}))
    sizes = {"arch": "resnet18", "max_pixels": 1_000_000}
    return ImageClassificationHandler(), folder, {**LIMITS, **ENGINE, **sizes, "max_body_bytes": 1024 * 1024}


def _languages(folder: Path) -> Staged:
    entry = model("language-id")
    language_id.stage(entry, source(entry, None), "auto", folder)
    return LanguageIdHandler(), folder, {**LIMITS, "threads": 1, "max_characters": 2000}


STAGED = {"text_classification": _texts, "image_classification": _images, "language_id": _languages}
