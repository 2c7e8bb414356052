"""The check that an archive answers as its model does. Nothing that fails it is built.

files of an archive -> the task, loaded as a worker does, its engine in fp32 -> its sample, answered
                                                                             -> rows alone and together, padded
the checkpoint      -> transformers, which owns it                           -> each row alone, unpadded -> the same?

A graph can differ from its model: a trace keeps the branch that its example took, a window of attention may see padding
alone, and some models count padding as text. The last are served with `padding: exact`, where that is all they need.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from deploy.build.hub import open_checkpoint
from deploy.build.precision import references
from deploy.build.precision.inputs import IMAGES, PAIRS, QUESTIONS, TEXTS, sample_payloads
from deploy.build.sources import Source
from deploy.build.tasks import import_quietly, load_task, task_of
from deploy.models import Engine, ModelEntry
from handlers.archive_files import FIDELITY
from handlers.config import parse
from handlers.errors import InvalidConfig, Unfaithful, reason
from handlers.text.encoders import Encoder, LastTokenClassifier, load_encoder
from handlers.warm_up import decode_items, run

# How far a number may be off, as a share of the largest of its output; sums in fp32 differ by a hundredth of that.
TOLERANCE = 1e-3
# Lengths of rows in tokens, beside the longest that the model takes. Each is run alone, and then micro-batches of them,
# as indices: short beside long, long beside short, neighbours; and of one length, which is never padded.
LENGTHS = (1, 2, 3, 8, 17, 33, 40, 130, 300)
TOGETHER = ((2, 4), (0, -1), (-1, 1, 3), (3, 6, 7), (-2, -1, 2), (4, 4, 4))
# A row's multiplications, a few seconds on two cores, and its tokens are no more than these.
MOST_WORK, MOST_TOKENS = 2e11, 2048
# Some models make nothing of fewer tokens than this.
FEW = 8

# Token ids, and the segment of each.
Row = tuple[list[int], list[int]]
Answers = Mapping[int, Sequence[NDArray[Any]]]


def check(model: ModelEntry, origin: Source, engine: Engine, folder: Path, out: Path) -> None:
    """Load an archive's files as a worker does, ask their sample, and hold texts' answers against the model's own.

    Args:
        model: the entry of the list.
        origin: where its weights come from.
        engine: that of the archive.
        folder: the archive's files.
        out: gets fidelity.json: what was compared, and the settings that the archive needs.

    Raises:
        Unfaithful: the engine cannot run it, or answers otherwise.
        WeightsUnavailable, InvalidConfig: see the builder; or the model itself gives no numbers.
    """
    config = parse(task_of(model).settings_class(), model.config().get("handler"))
    is_image = model.handler in IMAGES
    is_compared = is_image or model.handler in (*TEXTS, *QUESTIONS, *PAIRS)
    runs: Engine = "torch" if engine == "torch" else "openvino"
    settings = replace(config, engine=runs if is_compared else engine, precision="fp32" if is_compared else "auto")
    name = "PyTorch" if engine == "torch" else "OpenVINO" if is_compared else "its engine"
    try:
        task = load_task(model.handler, folder, settings)
        if (sample := task.sample()) is not None:
            run(task, decode_items(task, [sample]))
    except InvalidConfig:
        raise
    except Exception as error:
        raise Unfaithful(f"{name} cannot answer a sample: {reason(error)}") from error
    if not is_compared:
        (out / FIDELITY).write_text("{}")
        return
    if is_image:
        images = import_quietly("deploy.build.precision.image_fidelity")
        said, worst = images.check(model, origin, config, task, name)
    else:
        said, worst = _check_texts(model, origin, task, name)
    found = {} if is_image or task.config.padding == config.padding else {"padding": task.config.padding}
    (out / FIDELITY).write_text(json.dumps({"said": said, "engine": runs, "largest_error": worst, "settings": found}))


def _check_texts(model: ModelEntry, origin: Source, task: Any, name: str) -> tuple[str, float]:
    """Compare rows, and samples from the text on; the task has the padding with which they agree then.

    Returns:
        What was compared, and the largest error.
    """
    settings = task.config
    with open_checkpoint(model, origin, with_code=settings.trust_remote_code, lists_others=False) as source:
        encoder = load_encoder(task.head, source, trust_remote_code=settings.trust_remote_code)
        if isinstance(encoder.model, LastTokenClassifier):
            # Of one row, transformers itself finds the last token.
            encoder.model = encoder.model.model
        payloads = sample_payloads(model, task.inputs)
        items = decode_items(task, payloads)
        rows = _rows(task, encoder, items)
        exact = _exact(encoder, rows)
        asked = references.samples(task, payloads)
        library, wanted = references.answers(task, encoder, source, asked)
    for padding in dict.fromkeys((settings.padding, "exact")):
        task.config = replace(settings, padding=padding)
        worst, failed = _held(task, items[0], rows, exact)
        if not failed:
            break
    else:
        lengths = [length for length in exact if FEW <= length < min(failed)]
        way_out = (
            f"; max_length: {max(lengths)} in model-config.yaml keeps to the lengths that agree" if lengths else ""
        )
        raise Unfaithful(f"{name} answers otherwise than the model, {failed[min(failed)]}{way_out}")
    scales = _scales(wanted)
    for (item, _), own in zip(asked, wanted, strict=True):
        outputs = task.forward(task.collate([item]), [item]).values()
        change = max(
            difference(got[0][: len(each)], each, scale) for got, each, scale in zip(outputs, own, scales, strict=True)
        )
        if change > TOLERANCE:
            raise Unfaithful(f"{name} answers {item.text[:40]!r} otherwise than {library}, by {change:.2g}")
        worst = max(worst, change)
    said = f"{name} in fp32 is within {worst:.1e} of the model, {min(exact)} to {max(exact)} tokens alone and together"
    said += f", and of {library} on {len(wanted)} texts"
    if task.config.padding != settings.padding:
        said += "; padding: exact, since its answers depend on padding"
    return said, worst


def _rows(task: Any, encoder: Encoder, items: Sequence[Any]) -> dict[int, Row]:
    """Make rows by length: words of the samples between the tokens that stand around them."""
    (first, *others), kinds = _tokens(items[0])
    special = {*task.tokenizer.all_special_ids}
    words = [each for item in items for each in _tokens(item)[0] if each not in special] or [first]
    weights = sum(each.numel() for name, each in encoder.named_parameters() if "embed" not in name)
    longest = min(task.max_length, MOST_TOKENS, max(LENGTHS[-2], int(MOST_WORK / 2 / max(1, weights))))
    noise, rows = np.random.default_rng(0), {}
    for length in sorted({*LENGTHS, longest}):
        if length <= longest:
            ids = [first, *noise.choice(words, max(0, length - 2)).tolist(), (others or [first])[-1]]
            rows[length] = (ids[-length:], [kinds[0]] * (length // 2) + [kinds[-1]] * (length - length // 2))
    return rows


def _tokens(item: Any) -> Row:
    row = item.windows[0] if hasattr(item, "windows") else item
    return [*row.ids], [*row.type_ids]


def _item(item: Any, row: Row) -> Any:
    """Give an item other tokens."""
    if hasattr(item, "windows"):
        return replace(item, windows=[_item(window, row) for window in item.windows[:1]])
    return replace(item, ids=row[0], type_ids=row[1])


def _exact(encoder: Encoder, rows: Mapping[int, Row]) -> Answers:
    """Answer each row alone, the longest first: a model that remembers the shortest would answer others after it.

    Raises:
        InvalidConfig: the model cannot, or gives what is no number.
    """
    answers = {}
    for length in sorted(rows, reverse=True):
        arrays = {"input_ids": rows[length][0], "attention_mask": [1] * length, "token_type_ids": rows[length][1]}
        inputs = {name: torch.tensor([array]) for name, array in arrays.items() if name in encoder.input_names}
        try:
            with torch.no_grad():
                found = [each[0].float().numpy() for each in encoder(**inputs)]
        except Exception as error:
            if length < FEW:
                continue
            raise InvalidConfig(f"the model itself fails on a text of {length} tokens: {reason(error)}") from error
        if not all(np.isfinite(each).all() for each in found):
            raise InvalidConfig(f"the model itself answers a text of {length} tokens with what is no number")
        answers[length] = found
    return dict(sorted(answers.items()))


def _held(task: Any, item: Any, rows: Mapping[int, Row], exact: Answers) -> tuple[float, dict[int, str]]:
    """Run rows alone and together, and hold each against its exact answer.

    Returns:
        The largest error; and, by the length of a row that failed, the first thing wrong with it.
    """
    worst = 0.0
    failed: dict[int, str] = {}
    lengths = [*exact]
    scales = _scales(exact.values())
    together = [[lengths[at] for at in group if -len(lengths) <= at < len(lengths)] for group in TOGETHER]
    groups = [*([length] for length in lengths), *together]
    for group in groups:
        items = [_item(item, rows[length]) for length in group]
        try:
            outputs = task.forward(task.collate(items), items)
        except Exception as error:
            failed.setdefault(max(group), f"it fails on rows of {_listed(group)} tokens: {reason(error)}")
            continue
        for at, length in enumerate(group):
            got = [array[at][:length] if task.needs_places else array[at] for array in outputs.values()]
            change = max(map(difference, got, exact[length], scales))
            if change <= TOLERANCE:
                worst = max(worst, change)
            else:
                beside = f" in a micro-batch of {_listed(group)}" if len(group) > 1 else ""
                failed.setdefault(length, f"by {change:.2g} of the largest number at {length} tokens{beside}")
    return worst, failed


def _scales(answers: Iterable[Sequence[NDArray[Any]]]) -> list[float]:
    """Return the largest number of each output."""
    return [max(float(np.abs(each).max()) for each in every) for every in zip(*answers, strict=True)]


def difference(got: NDArray[Any], exact: NDArray[Any], scale: float) -> float:
    if got.shape != exact.shape or not np.isfinite(got).all():
        return math.inf
    return float(np.abs(got - exact).max() / max(scale, 1e-9))


def _listed(lengths: Sequence[int]) -> str:
    return ", ".join(map(str, lengths))
