"""Translation: a text becomes a text, by any transformers model of that kind: Marian, M2M100, NLLB, SeamlessM4T, T5."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from handlers.archive_files import load_build
from handlers.base import BatchHandler
from handlers.config import parse_options
from handlers.engines import Arrays, Listener, Outputs
from handlers.engines.ctranslate2 import CONVERTED, STEP_ITEMS, CTranslate2Engine
from handlers.engines.decoding import counted_settings
from handlers.errors import InvalidConfig, InvalidOption, InvalidText, ItemError
from handlers.pipeline.micro_batches import Cost, Overhead
from handlers.pipeline.task import inputs_of
from handlers.pipeline.values import TEXTS, Results
from handlers.protocol.output_tensors import columns
from handlers.protocol.requests import Payload, Request
from handlers.protocol.rows import Headers
from handlers.text.config import TranslationConfig, TranslationOptions
from handlers.text.detection import AUTO, Detector, SourceLanguage, SourceText, load_detector
from handlers.text.documents import DEFAULT_LANGUAGE, DividedText, divide_texts, split_text
from handlers.text.encoders import find_source_limit
from handlers.text.inputs import AnswerLengths, add_tokens, pad_rows, read_payload
from handlers.text.languages import Target, shorten_code
from handlers.text.translators import Original, Prepared, read_translator

if TYPE_CHECKING:
    from handlers.engines.seq2seq import Generator

LIKELIEST_STREAMS = 2  # CTranslate2's streams before a trial of their number


class TranslationHandler(BatchHandler[TranslationConfig, SourceText]):
    """Serves the files of an archive:

    checkpoint/       tokenizer and configuration; model.safetensors for torch
    ctranslate2/      the converted model, if CTranslate2 supports the family

    text -> decode -> checked text -> prepare: one call of the tokenizer for each source language
         -> collate, forward: one run for items of equal options and languages -> split: its text
    """

    config_class = TranslationConfig
    options_class = TranslationOptions
    inputs = TEXTS
    results = Results(columns({"translation_text": object}), view="translation")

    engine: "Generator | CTranslate2Engine"

    def load(self) -> "Generator | CTranslate2Engine":
        config = self.config
        self.model = model = read_translator(self.archive.checkpoint_dir, trust_remote_code=config.trust_remote_code)
        converted = self.archive.model_dir / CONVERTED
        # In a greedy run of CTranslate2 each answer has its own limit; otherwise a micro-batch has one limit.
        self.ends_each = config.engine == "auto" and converted.is_dir()
        engine = self._load_converted(converted, model) if self.ends_each else self._load_generator()
        self.is_greedy_only = getattr(engine, "is_greedy_only", False)
        self.starts_with_end = getattr(engine, "starts_with_end", False)
        self.vocabulary_size = getattr(engine, "vocabulary_size", inf)
        self.languages = model.languages
        for name, code, codes in (
            ("src_lang", config.src_lang, self.languages.sources),
            ("tgt_lang", config.tgt_lang, self.languages.targets),
        ):
            if code not in (None, AUTO) and code not in codes:
                known = ", ".join(sorted(codes)) or "none: its languages are fixed"
                raise InvalidConfig(f"{name}: {code} is not a language of this model; known are {known}")
        self.detector = None if config.detector is None else self._load_detector()
        self.max_length = find_source_limit(self.archive.checkpoint_dir, config.max_length)
        self.lengths = AnswerLengths.read(model.generation, model.positions, config.max_new_tokens_limit)
        # None if the limit follows from a text's length.
        self.usual_limit = config.max_new_tokens and min(config.max_new_tokens, self.lengths.limit)
        return engine

    def _load_generator(self) -> "Generator | CTranslate2Engine":
        from handlers.engines.seq2seq import Generator, load_model, step_items  # noqa: PLC0415
        from handlers.engines.torch import torch_precision  # noqa: PLC0415

        config, archive = self.config, self.archive
        self.inputs = replace(inputs_of(self), overhead=Overhead(items=step_items(archive.device)))
        precision, trusted = torch_precision(config.precision), config.trust_remote_code
        model = load_model(archive.checkpoint_dir, archive.device, precision, trust_remote_code=trusted)
        return Generator(model, archive.device, config.threads, longest_run_s=archive.longest_run_s)

    def _load_converted(self, folder: Path, model: Original | Prepared) -> CTranslate2Engine:
        """Load the converted model, on the configured streams or on the likeliest number."""
        config, build = self.config, load_build(self.archive.model_dir)
        if config.precision == "fp32" and build and str(build.label.get("precision", "")).startswith("int"):
            stored = build.label["precision"]
            raise InvalidConfig(
                f"precision: fp32 needs an archive that is built with it; the weights of this one are {stored}"
            )
        items = STEP_ITEMS
        if self.archive.device.type != "cpu":
            from handlers.engines.seq2seq import step_items  # noqa: PLC0415

            items = step_items(self.archive.device)
        self.inputs = replace(inputs_of(self), overhead=Overhead(items=items))
        wanted = config.scheduling.streams
        return CTranslate2Engine(
            folder,
            model.generation,
            pad_id=model.pad_id,
            device=self.archive.device,
            precision=config.precision,
            threads=config.threads,
            streams=LIKELIEST_STREAMS if wanted == "auto" else wanted,
            longest_run_s=self.archive.longest_run_s,
        )

    def _load_detector(self) -> Detector:
        sources = self.languages.sources
        if not sources:
            raise InvalidConfig("detector: this model's source language is fixed; remove the setting")
        names = {"translation_text": object, "src_lang": object, "src_lang_score": np.float32}
        self.results = replace(self.results, tensors=columns(names))
        fallback = None if self.config.src_lang == AUTO else self.config.src_lang
        return Detector(load_detector(self.archive.model_dir), sources, fallback)

    def sample(self) -> Payload:
        """Return a sentence, in the model's first languages if the settings name none."""
        config, languages = self.config, self.languages
        source, target = min(languages.sources, default=None), min(languages.targets, default=None)
        named = None if config.src_lang == AUTO else config.src_lang
        options = {"src_lang": named or source, "split": "none", "tgt_lang": config.tgt_lang or target}
        return Payload("What went before decides what comes next.", options)

    def unpack(self, row: Mapping[str, object], headers: Headers) -> Request:
        """Replace a text that is translated sentence by sentence by its sentences."""
        return divide_texts(super().unpack(row, headers), self._divide, self.config.max_sentences)

    def _divide(self, payload: Payload) -> DividedText | None:
        """Split a text into sentences if the request asks for it; its language is identified once."""
        if payload.options.get("split", self.config.split) != "sentences":
            return None
        sent = parse_options(TranslationOptions, payload.options)
        text = read_payload(payload, self.config.max_characters)
        source = self._find_source(text, sent)
        self._complete(sent, source, text)  # a wrong option is an error of the text, not of a sentence
        prefix, text = self.languages.prefix_of(text)
        language = source.code or self.model.source_lang or DEFAULT_LANGUAGE
        options = {**payload.options, "split": "none", "src_lang": source.code}
        return DividedText(split_text(text, shorten_code(language)), options, prefix, source.fields)

    def _find_source(self, text: str, options: TranslationOptions) -> SourceLanguage:
        """Return the language that a text is translated from: the request's, the detector's or the settings'."""
        wanted = options.src_lang or (self.config.src_lang if self.detector is None else AUTO)
        if wanted != AUTO:
            return SourceLanguage(wanted)
        if self.detector is None:
            raise InvalidOption(
                "src_lang: auto needs a detector, which this archive lacks; set src_lang to a language."
            )
        least = self.config.min_score if options.min_score is None else options.min_score
        return self.detector.identify(text, least)

    def decode(self, payload: Payload) -> SourceText:
        """Check a text, or {"text": ...}, and its options."""
        text = read_payload(payload, self.config.max_characters)
        if payload.allowance:
            payload.allowance.take("characters", len(text), self.config.max_request_characters)
        source = self._find_source(text, payload.options)
        return SourceText(text, self._complete(payload.options, source, text), source=source)

    def _complete(self, sent: TranslationOptions, source: SourceLanguage, text: str) -> TranslationOptions:
        """Complete and check the options of a text, so that equal ones make a group."""
        beams = sent.num_beams or self.config.num_beams
        is_greedy = beams == 1
        options = replace(
            sent,
            src_lang=source.code,
            # Both are applied already, and must not keep items from sharing a micro-batch.
            min_score=None,
            split=None,
            tgt_lang=sent.tgt_lang or (None if self.languages.prefix_of(text)[0] else self.config.tgt_lang),
            max_new_tokens=sent.max_new_tokens or self.usual_limit,
            num_beams=beams,
            # Without beams these two have no effect.
            length_penalty=None if is_greedy else sent.length_penalty,
            early_stopping=None if is_greedy else sent.early_stopping,
        )
        for name, limit in (("max_new_tokens", self.lengths.limit), ("num_beams", self.config.num_beams_limit)):
            if (getattr(options, name) or 0) > limit:
                raise InvalidOption(f"{name}: {getattr(options, name)}; at most {limit}.")
        if not is_greedy and self.is_greedy_only:
            raise InvalidOption("num_beams: must be 1; the engine of this archive searches otherwise than the model.")
        if self.starts_with_end and (named := counted_settings(options)):
            least = 1 if named[0] == "repetition_penalty" else "0 or over 1"
            raise InvalidOption(
                f"{named[0]}: must be {least}; answers of this model begin with its end token, which this archive's "
                "engine does not count. An archive built with --engine torch does."
            )
        self.languages.check(options.src_lang, options.tgt_lang, text)
        return options

    def prepare(self, items: Sequence[SourceText]) -> Sequence[SourceText | ItemError]:
        """Tokenise in one call for each source language; reject a text that is too long, or cut it if so set."""
        sources: dict[str | None, list[int]] = defaultdict(list)
        for index, item in enumerate(items):
            sources[item.options.src_lang].append(index)
        outcomes: list[SourceText | ItemError] = list(items)
        for source, indices in sources.items():
            texts = [self._target(items[index]).prefix + items[index].text for index in indices]
            rows = self.model.encode(texts, source, self.max_length if self.config.truncation else None)
            for index, ids in zip(indices, rows, strict=True):
                if max(ids, default=0) >= self.vocabulary_size:
                    # The conversion leaves out Marian's padding.
                    outcomes[index] = ItemError.of(InvalidText("text: contains a special token of the model."))
                else:
                    outcomes[index] = add_tokens(self._set_limit(items[index], len(ids)), ids, self.max_length)
        return outcomes

    def _set_limit(self, item: SourceText, source_tokens: int) -> SourceText:
        """Set the limit that follows from an item's length, if it has none."""
        if item.options.max_new_tokens is not None:
            return item
        limit = self.lengths.of(source_tokens, in_few_classes=not self._ends_each(item.options))
        return replace(item, options=replace(item.options, max_new_tokens=limit))

    def _ends_each(self, options: TranslationOptions) -> bool:
        """Return whether items of different limits may share a micro-batch."""
        return self.ends_each and options.num_beams == 1

    def _target(self, item: SourceText) -> Target:
        return self.languages.targets.get(item.options.tgt_lang or "", Target())

    def cost(self, item: SourceText) -> Cost:
        """Tokens count once for every beam, and equal options and languages make a group."""
        options, length = item.options, self._length(len(item.ids))
        beams, new_tokens = options.num_beams or 1, options.max_new_tokens or 0
        group = replace(options, max_new_tokens=None) if self._ends_each(options) else options
        return Cost(length * beams, group, work=(length + new_tokens) * beams)

    def _length(self, tokens: int) -> int:
        return self.max_length if self.config.padding == "max_length" else tokens

    def collate(self, items: Sequence[SourceText]) -> Arrays:
        """Pad the items to the longest: `input_ids` and `attention_mask`, (B, T) int64, right-padded."""
        length = self._length(max(len(item.ids) for item in items))
        return pad_rows([item.ids for item in items], length, self.model.pad_id)

    def forward(self, inputs: Arrays, items: Sequence[SourceText]) -> Outputs:
        """Translate all items in one run: `sequences`, (B, U) int64."""
        return self.engine.run(inputs, self._arguments(items))

    def forward_reporting(self, inputs: Arrays, items: Sequence[SourceText], ended: Listener) -> Outputs:
        """Translate all items in one run, and report each text that ends; with beams none is reported."""
        is_greedy = items[0].options.num_beams == 1
        return self.engine.run(inputs, self._arguments(items), ended if is_greedy else None)

    def _arguments(self, items: Sequence[SourceText]) -> dict[str, object]:
        """Return the arguments of generate() for items of one group."""
        first, *_ = items
        options = {name: value for name, value in asdict(first.options).items() if value is not None}
        arguments = {name: value for name, value in options.items() if name not in ("src_lang", "tgt_lang")}
        if self._ends_each(first.options):
            arguments["max_new_tokens"] = [item.options.max_new_tokens for item in items]
        return {**arguments, **self._target(first).arguments}

    def split(self, outputs: Outputs, items: Sequence[SourceText]) -> Sequence[object]:
        """Turn `sequences`, (B, U), into {"translation_text": ...} for each item."""
        texts = self.model.decode(outputs["sequences"])
        return [{"translation_text": text, **item.source.fields} for item, text in zip(items, texts, strict=True)]
