"""Samples and exact answers of text encoders, for the check of fidelity.

words of samples -> rows of many lengths    -> the model, row by row, unpadded
samples          -> tokens of the library   -> the library that owns the checkpoint (references.py)

A graph can differ from its model: a trace keeps the branch of its example, a window of attention may see only padding,
and some models count padding as text. The last are served with `padding: exact` if that makes their answers equal.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch

from deploy.archives.differences import Array, Sample, compare_samples, relative_error
from deploy.archives.hub import open_checkpoint
from deploy.archives.precision import references
from deploy.archives.precision.inputs import make_sample_payloads
from deploy.archives.precision.references import TextTask
from deploy.archives.sources import Source
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig, Unfaithful, reason
from handlers.pipeline.task import inputs_of
from handlers.text.encoder_modules import Encoder, LastTokenClassifier, load_encoder
from handlers.warm_up import decode_items

LENGTHS = (1, 2, 3, 8, 17, 33, 40, 130, 300)  # lengths of rows in tokens, beside the longest that the model accepts
# Micro-batches of them, as indices: short beside long, long beside short, neighbours; and one length, never padded.
TOGETHER = ((2, 4), (0, -1), (-1, 1, 3), (3, 6, 7), (-2, -1, 2), (4, 4, 4))
MOST_WORK = 2e11  # the most multiplications of a row, a few seconds on two cores
MOST_TOKENS = 2048  # the most tokens of a row
MARKED, MOST_MARKS = 8, 8  # words of a text with special tokens inside, and the most of these tokens
FEW = 8  # some models cannot answer fewer tokens than this

Row = tuple[list[int], list[int]]  # token ids, and the segment of each


def check(model: ModelEntry, origin: Source, config: object, task: TextTask, engine: str) -> tuple[str, float]:  # noqa: ARG001
    """Compare rows and samples in words, with the largest error; the task then has the padding that agrees."""
    settings = task.config
    with open_checkpoint(model, origin, with_code=settings.trust_remote_code, lists_others=False) as source:
        encoder = load_encoder(task.head, source, trust_remote_code=settings.trust_remote_code)
        if isinstance(encoder.model, LastTokenClassifier):
            encoder.model = encoder.model.model  # for a row without padding, transformers itself finds the last token
        payloads = make_sample_payloads(model, inputs_of(task).fields)
        chosen = references.choose_samples(task, payloads)
        items = decode_items(task, payloads) or [item for item, _ in chosen]
        frame = _Frame.read(task, items)
        rows, marked = _make_rows(task, encoder, frame), _mark(task, encoder, frame)
        exact, beside = _answer_rows(encoder, rows), _answer_marked(encoder, marked)
        library, wanted = references.answer(task, encoder, source, chosen)
    lengths, scales = [*exact], _find_scales(exact.values())
    samples = {
        length: Sample(f"{length} tokens", _with_row(items[0], rows[length]), [_measure(task, answer, scales)])
        for length, answer in exact.items()
    }
    together = [[lengths[at] for at in group if -len(lengths) <= at < len(lengths)] for group in TOGETHER]
    groups = [*([length] for length in lengths), *together]
    others = {
        at: Sample(name, _with_row(items[0], marked[name]), [_measure(task, answer, scales)])
        for at, (name, answer) in enumerate(beside.items())
    }
    # A row without a special token beside one with two of them: other numbers, and an even sum.
    sets = [*([at] for at in others), *([0, at] for at in [*others][1:]), [*others]]
    for padding in dict.fromkeys((settings.padding, "exact")):
        task.config = replace(settings, padding=padding)
        outcome = compare_samples(task, samples, groups, kind="a text of", owner="the model")
        specials = compare_samples(task, others, sets, kind="a text with", owner="the model")
        if not outcome.failures and not specials.failures:
            break
    else:
        if not outcome.failures:
            raise Unfaithful(f"{engine} {next(iter(specials.failures.values()))}")
        least = min(outcome.failures)
        fitting = [length for length in lengths if FEW <= length < least]
        way_out = f"; max_length: {max(fitting)} in model-config.yaml keeps to lengths that agree" if fitting else ""
        raise Unfaithful(f"{engine} {outcome.failures[least]}{way_out}")
    scales = _find_scales(wanted)
    texts = {
        number: Sample(repr(item.text[:40]), item, [_measure(task, answer, scales)])
        for number, ((item, _), answer) in enumerate(zip(chosen, wanted, strict=True))
    }
    asked = compare_samples(task, texts, [[number] for number in texts], kind="the text", owner=library)
    for words in asked.failures.values():
        raise Unfaithful(f"{engine} {words}")
    words = f"{engine} in fp32 is within {max(outcome.largest_error, asked.largest_error):.1e} of the model, "
    words += f"{min(exact)} to {max(exact)} tokens one by one and together, and of {library} on {len(wanted)} texts"
    if task.config.padding != settings.padding:
        words += "; padding: exact, since its answers depend on padding"
    return words, max(outcome.largest_error, asked.largest_error)


def _measure(task: TextTask, exact: Sequence[Array], scales: Sequence[float]) -> Callable[[Sequence[Array]], float]:
    def measure(got: Sequence[Array]) -> float:
        own = [array[: len(each)] if task.needs_places else array for array, each in zip(got, exact, strict=True)]
        return max(map(relative_error, own, exact, scales))

    return measure


class _Frame(NamedTuple):
    """The special tokens of a row, and the segments of the texts between them."""

    parts: list[list[tuple[int, int]]]  # ids and segments, before, between and after the texts
    kinds: list[int]  # the segment of each text
    words: list[int]  # ids that a text may have

    @classmethod
    def read(cls, task: TextTask, items: Sequence[object]) -> "_Frame":
        special = {*task.tokenizer.all_special_ids} - {task.tokenizer.unk_token_id}
        tokens = [*zip(*_read_tokens(items[0]), strict=True)]
        runs = [(is_special, [*run]) for is_special, run in groupby(tokens, lambda each: each[0] in special)]
        if not runs or not runs[0][0]:
            runs.insert(0, (True, []))
        if not runs[-1][0]:
            runs.append((True, []))
        words = [each for item in items for each in _read_tokens(item)[0] if each not in special]
        kinds = [run[0][1] for is_special, run in runs if not is_special]
        return cls([run for is_special, run in runs if is_special], kinds, words or [tokens[0][0]])

    def join(self, texts: Sequence[Iterable[int]]) -> Row:
        tokens = [*self.parts[0]]
        for text, kind, part in zip(texts, self.kinds, self.parts[1:], strict=True):
            tokens += [*((int(each), kind) for each in text), *part]
        return [each for each, _ in tokens], [kind for _, kind in tokens]

    def fill(self, length: int, noise: np.random.Generator) -> Row:
        """Make a row of words; of several texts, the first end elsewhere in each row."""
        room, texts = length - sum(map(len, self.parts)), len(self.kinds)
        if room < texts:
            ids, kinds = self.join([[self.words[0]]] * texts)
            return ids[-length:], kinds[-length:]
        ends: Any = np.sort(noise.choice(np.arange(1, room), texts - 1, replace=False)) if texts > 1 else []
        return self.join(np.split(noise.choice(self.words, room), ends))


def _make_rows(task: TextTask, encoder: Encoder, frame: _Frame) -> dict[int, Row]:
    """Make rows by length: words of the samples between the special tokens around them."""
    weights = sum(each.numel() for name, each in encoder.named_parameters() if "embed" not in name)
    longest = min(task.max_length, MOST_TOKENS, max(LENGTHS[-2], int(MOST_WORK / 2 / max(1, weights))))
    noise = np.random.default_rng(0)
    return {length: frame.fill(length, noise) for length in sorted({*LENGTHS, longest}) if length <= longest}


def _mark(task: TextTask, encoder: Encoder, frame: _Frame) -> dict[str, Row]:
    """Make rows with special tokens inside of a text, as a client may write them, by these tokens in words."""
    ends = getattr(encoder.model.config, "eos_token_id", None)
    known = [*([ends] if isinstance(ends, int) else []), *sorted(task.tokenizer.all_special_ids)]
    known = [each for each in dict.fromkeys(known) if each != task.tokenizer.unk_token_id][:MOST_MARKS]
    names = task.tokenizer.backend_tokenizer.id_to_token if task.tokenizer.is_fast else str
    noise, texts = np.random.default_rng(1), [[frame.words[0]] * 2] * (len(frame.kinds) - 1)
    words = noise.choice(frame.words, MARKED).tolist()
    inner = {"no special token": words}
    inner |= {f"{names(each)} twice": [*words[:3], each, *words[3:5], each, *words[5:]] for each in known}
    inner["each special token"] = [token for pair in zip_longest(words, known) for token in pair if token is not None]
    rows = {name: frame.join([*texts, text]) for name, text in inner.items()}
    return {name: row for name, row in rows.items() if len(row[0]) <= task.max_length}


def _read_tokens(item: Any) -> Row:
    row = item.windows[0] if hasattr(item, "windows") else item
    return [*row.ids], [*row.type_ids]


def _with_row(item: Any, row: Row) -> Any:
    if hasattr(item, "windows"):
        return replace(item, windows=[_with_row(window, row) for window in item.windows[:1]])
    return replace(item, ids=row[0], type_ids=row[1])


def _answer_rows(encoder: Encoder, rows: Mapping[int, Row]) -> dict[int, list[Array]]:
    """Answer the rows one by one, the longest first: with state of a short row, later answers may be wrong."""
    answers = {}
    for length in sorted(rows, reverse=True):
        try:
            found = _answer(encoder, rows[length])
        except Exception as error:
            if length < FEW:
                continue
            raise InvalidConfig(f"the model itself fails on a text of {length} tokens: {reason(error)}") from error
        if not all(np.isfinite(each).all() for each in found):
            raise InvalidConfig(f"the model itself returns NaN or infinity for a text of {length} tokens")
        answers[length] = found
    return dict(sorted(answers.items()))


@torch.no_grad()
def _answer(encoder: Encoder, row: Row) -> list[Array]:
    arrays = {"input_ids": row[0], "attention_mask": [1] * len(row[0]), "token_type_ids": row[1]}
    inputs = {name: torch.tensor([array]) for name, array in arrays.items() if name in encoder.input_names}
    return [each[0].float().numpy() for each in encoder(**inputs)]


def _answer_marked(encoder: Encoder, rows: Mapping[str, Row]) -> dict[str, list[Array]]:
    """Answer the rows that the model itself can answer: some, such as Longformer's, need a number of separators."""
    answers = {}
    for name, row in rows.items():
        with suppress(Exception):
            found = _answer(encoder, row)
            if all(np.isfinite(each).all() for each in found):
                answers[name] = found
    return answers


def _find_scales(answers: Iterable[Sequence[Array]]) -> list[float]:
    return [max(float(np.abs(each).max()) for each in every) for every in zip(*answers, strict=True)]
