"""Compare a staged translation archive with transformers' own generate(), before the archive is written.

source -> Reference: one text at a time, in fp32, greedy and with beams; the language as transformers documents it
staged -> the task as a worker loads it, with the texts in micro-batches
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from handlers.checkpoints import load_tokenizer
from handlers.engines import Outputs
from handlers.engines.seq2seq import load_model
from handlers.pipeline.task import Task as Served
from handlers.precision.answers import run_items
from handlers.protocol.requests import Payload
from handlers.warm_up import decode_items
from torchserve_client.payloads import Json

# Texts of one word to some fifty, with characters outside English.
TEXTS = (
    "Yes.",
    "The ferry leaves at seven.",
    "What went before decides what comes next, 1,024 times.",
    "Café, naïve, 한국은행, Привет: not every text is English!",
    "the the the",
    "In winter the sea is rough and the school closes for weeks at a time, so letters and bread are carried up the "
    "hill on a mule, and old Marta writes down every ship that passes, its name, its flag and the hour.",
)
NEW_TOKENS = 32  # the most tokens of an answer
BEAMS = 4  # the beams of the search
# The share of the largest logit by which the model may prefer its token, and the difference of two answers' scores:
# rounding in fp32 changes both by less.
TIE = 1e-3


class Reference:
    """transformers' generate() on a checkpoint, in fp32."""

    def __init__(self, source: Path, options: Json, *, trust_remote_code: bool) -> None:
        """Load the checkpoint; `options` name the languages of a model that has several."""
        self._tokenizer = load_tokenizer(source, trust_remote_code=trust_remote_code)
        self._model = load_model(source, torch.device("cpu"), "fp32", trust_remote_code=trust_remote_code)
        if options.get("src_lang"):
            self._tokenizer.src_lang = options["src_lang"]
        self._prefix, self._target = self._select(options.get("tgt_lang"))

    def _select(self, language: str | None) -> tuple[str, Json]:
        """Return the prefix of texts and the arguments of generate() that choose the language of the answer."""
        tokenizer = self._tokenizer
        if language is None:
            return "", {}
        if hasattr(tokenizer, "supported_language_codes"):  # Marian
            return f">>{language}<< ", {}
        if "SeamlessM4T" in type(tokenizer).__name__:
            return "", {"tgt_lang": language}
        if hasattr(tokenizer, "get_lang_id"):  # M2M100
            return "", {"forced_bos_token_id": tokenizer.get_lang_id(language)}
        number = tokenizer.convert_tokens_to_ids(language)
        is_mbart25 = type(tokenizer).__name__.startswith("MBartTokenizer")
        return "", {"decoder_start_token_id" if is_mbart25 else "forced_bos_token_id": number}

    @torch.inference_mode()
    def generate(self, text: str, beams: int, limit: int) -> tuple[str, list[int], dict[str, torch.Tensor]]:
        """Return the answer (empty after a tie), its ids with the decoder's first ones, and the model's inputs."""
        inputs = self._tokenizer([self._prefix + text], return_tensors="pt")
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        made = self._model.generate(
            **inputs,
            **self._target,
            num_beams=beams,
            num_return_sequences=min(2, beams),
            do_sample=False,
            max_new_tokens=limit,
            max_length=None,
            output_scores=True,
            return_dict_in_generate=True,
        )
        ids = made.sequences[0].tolist()
        if beams > 1 and made.sequences_scores[0] - made.sequences_scores[1] <= TIE:
            return "", ids, inputs
        return self.decode(ids), ids, inputs

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    @torch.inference_mode()
    def is_tie(self, inputs: Mapping[str, torch.Tensor], own: Sequence[int], other: Sequence[int]) -> bool:
        """Return whether the model is indifferent at the first token in which another answer differs from its own."""
        special = set(self._tokenizer.all_special_ids)
        places = [place for place, number in enumerate(own) if number not in special]
        theirs = [number for number in other if number not in special]
        same = next((n for n, place in enumerate(places) if n >= len(theirs) or theirs[n] != own[place]), len(places))
        place = places[same] if same < len(places) else (places[-1] + 1 if places else len(own))
        ends = self._tokenizer.eos_token_id
        left = own[place] if place < len(own) else ends
        right = theirs[same] if same < len(theirs) else ends
        logits = self._model(**inputs, decoder_input_ids=torch.tensor([own[:place]])).logits[0, -1]
        return bool((logits[left] - logits[right]).abs() <= TIE * logits.abs().max())


def find_differences(source: Path, task: Any, texts: Sequence[str]) -> dict[int, str]:
    """Find the first text whose answer differs, by the number of beams: 1 and BEAMS."""
    limit = min(NEW_TOKENS, task.lengths.limit)
    options = {**task.sample().options, "max_new_tokens": limit}
    reference = Reference(source, options, trust_remote_code=task.config.trust_remote_code)
    found: dict[int, str] = {}
    for beams in (1, BEAMS):
        items = decode_items(task, [Payload(text, {**options, "num_beams": beams}) for text in texts])
        answers = run_items(task, items, _read_answers, len(items))
        for item, (ids, answer) in zip(items, answers, strict=True):
            wanted, own, inputs = reference.generate(item.text, beams, limit)
            if answer != wanted and not (reference.is_tie(inputs, own, ids) if beams == 1 else not wanted):
                found.setdefault(beams, item.text)
    return found


def _read_answers(task: Served, outputs: Outputs, items: Sequence[object]) -> list[tuple[list[int], str]]:
    results: Any = task.split(outputs, items)
    return [*zip(outputs["sequences"].tolist(), (each["translation_text"] for each in results), strict=True)]
