"""A real model for each task, as small as it comes, in an archive whose limits are soon reached.

checkpoint or network of a few kilobytes -> staged as archive.sh does it -> a folder that a worker loads
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openvino
import torch

from deploy import language_id, tokenization
from deploy.models import model
from deploy.sources import source
from handlers.base import BatchHandler
from handlers.tasks.image_classification import ImageClassificationHandler
from handlers.tasks.language_id import LanguageIdHandler
from handlers.tasks.question_answering import QuestionAnsweringHandler
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.tasks.text_classification import TextClassificationHandler
from handlers.tasks.token_classification import TokenClassificationHandler
from handlers.tasks.tokenization import TokenizationHandler
from handlers.tasks.translation import TranslationHandler
from handlers.vision.pixel_classifier import PixelClassifier
from tests import tiny_models, tiny_seq2seq
from tests.fuzz import images, texts
from tests.fuzz.kinds import MAX_BODY_BYTES, MAX_INSTANCES, MAX_TEXT_BYTES
from tests.handlers.tasks import translating

SIDE, CLASSES = 32, 7
# fp32, so that an answer among others is the one alone to many digits.
LIMITS = {"precision": "fp32", "threads": 1, "decode_threads": 2, "max_instances": MAX_INSTANCES}
TEXT_LIMITS = {**LIMITS, "max_body_bytes": MAX_TEXT_BYTES, "max_characters": texts.MAX_CHARACTERS}


@dataclass(frozen=True, slots=True)
class Archive:
    """A task's handler, what its archive holds, and its settings.

    Attributes:
        handler: the class.
        stage: writes what the archive holds into a folder; returns where.
        settings: of `handler:`.
    """

    handler: type[BatchHandler[Any, Any]]
    stage: Callable[[Path], Path]
    settings: Mapping[str, Any] = field(default_factory=dict)


def _image_classifier(folder: Path) -> Path:
    """A convolution and a head: pixels (B, SIDE, SIDE, 3) -> logits (B, CLASSES)."""
    torch.manual_seed(3)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, stride=3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 10 * 10, CLASSES)
    )
    module = PixelClassifier(network, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)).eval()
    example = torch.zeros(2, SIDE, SIDE, 3, dtype=torch.uint8)
    graph = openvino.convert_model(module, example_input=example, input=[-1, SIDE, SIDE, 3])
    graph.inputs[0].get_tensor().set_names({"pixels"})
    graph.outputs[0].get_tensor().set_names({"logits"})
    openvino.save_model(graph, folder / "model.xml", compress_to_fp16=False)
    (folder / "index_to_name.json").write_text(json.dumps({str(index): f"label {index}" for index in range(CLASSES)}))
    return folder


def _language_id(folder: Path) -> Path:
    entry = model("language-id")
    language_id.stage(entry, source(entry, None), "auto", folder)
    return folder


TRANSLATION = {**translating.SETTINGS, "detector": translating.DETECTOR, "max_sentences": 16}


def _translation(folder: Path) -> Path:
    (folder / "checkpoint").mkdir()
    return translating.staged("tiny", tiny_seq2seq.m2m100(folder / "checkpoint"), folder, TRANSLATION)


def _tokenizer(folder: Path) -> Path:
    checkpoint = tiny_models.checkpoint(folder / "weights", "bert", "sentence_embedding")
    entry = model("tokenizer")
    (folder / "archive").mkdir()
    tokenization.stage(entry, source(entry, str(checkpoint)), "auto", folder / "archive")
    return folder / "archive"


def _encoder(task: str, **more: Any) -> Callable[[Path], Path]:
    return lambda folder: tiny_models.staged(folder, "bert", task, **more)


ARCHIVES = {
    "image_classification": Archive(
        ImageClassificationHandler,
        _image_classifier,
        {
            **LIMITS,
            "arch": "resnet18",
            "resize_size": SIDE + 4,
            "crop_size": SIDE,
            "max_pixels": images.MAX_PIXELS,
            "max_body_bytes": MAX_BODY_BYTES,
        },
    ),
    "text_classification": Archive(
        TextClassificationHandler, _encoder("text_classification", labels=("bad", "fair", "good")), TEXT_LIMITS
    ),
    "token_classification": Archive(TokenClassificationHandler, _encoder("token_classification"), TEXT_LIMITS),
    "question_answering": Archive(
        QuestionAnsweringHandler,
        _encoder("question_answering"),
        {**TEXT_LIMITS, "max_length": 96, "doc_stride": 32, "max_windows": 6},
    ),
    "sentence_embedding": Archive(SentenceEmbeddingHandler, _encoder("sentence_embedding"), TEXT_LIMITS),
    "tokenization": Archive(TokenizationHandler, _tokenizer, TEXT_LIMITS),
    "translation": Archive(TranslationHandler, _translation, {**TEXT_LIMITS, **TRANSLATION, "num_beams_limit": 2}),
    "language_id": Archive(
        LanguageIdHandler,
        _language_id,
        {name: value for name, value in TEXT_LIMITS.items() if name != "precision"},
    ),
}
