"""Comparisons of answers in two precisions. Pure: arrays in, figures out.

docs/explanation/precision.md lists the measure of each kind of answer, and answers.py the least agreement. Near ties,
in which fp32's first does not lead by LEAD, are left out: of crops of photographs without any of ImageNet's classes,
one in five changes its class in int8, and some do so between two processors in fp32.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from handlers.aliases import Array
from handlers.probabilities import sigmoid

Floats = NDArray[np.floating[Any]]

LEAD = 0.2  # a sample counts if fp32's first label has this much more probability than its second
SURE = 0.5  # the least score, in fp32, of a box that the other precision must find
OVERLAPS = np.linspace(0.5, 0.95, 10)  # the least overlaps, intersection over union, of COCO's average precision


class Span(NamedTuple):
    """The answer to a question: its place in the context, in characters, its probability, and its lead."""

    start: int
    end: int
    score: float
    lead: float


class Boxes(NamedTuple):
    """The boxes of an image: (N,) class names, (N,) scores, (N, 4) corners."""

    labels: Array
    scores: Floats
    corners: Floats


class Comparison(NamedTuple):
    agreement: float
    largest_change: float
    samples: int
    detail: str = ""


def compare_rows(exact: Sequence[Floats], others: Sequence[Floats]) -> Comparison:
    """Return the share of clear rows that keep their likeliest class; the detail is its mean change of probability."""
    ours, theirs = np.concatenate(exact), np.concatenate(others)
    best = ours.argmax(axis=1)
    top = np.sort(ours, axis=1)
    is_clear = top[:, -1] - (top[:, -2] if ours.shape[1] > 1 else 0.0) >= LEAD
    is_same = np.isfinite(theirs).all(axis=1) & (best == theirs.argmax(axis=1))
    changes = _measure_changes(ours, theirs)
    return _summarise(is_same, is_clear, float(changes.max()), float(changes[np.arange(len(best)), best].mean()))


def _summarise(is_same: NDArray[np.bool_], is_clear: NDArray[np.bool_], largest: float, mean: float) -> Comparison:
    agreement = float(is_same[is_clear].mean()) if is_clear.any() else 0.0
    detail = f"{len(is_clear) - is_clear.sum()} near ties left out, mean change of the first label's {mean:.4f}"
    return Comparison(agreement, largest, int(is_clear.sum()), detail)


def compare_accuracy(exact: Sequence[Floats], others: Sequence[Floats], truths: Sequence[int]) -> Comparison:
    """Compare probabilities, (1, classes) of each item, by their accuracy over that in fp32."""
    ours, theirs = np.concatenate(exact), np.concatenate(others)
    right = [float((np.isfinite(rows).all(axis=1) & (rows.argmax(axis=1) == truths)).mean()) for rows in (ours, theirs)]
    agreement = min(1.0, right[1] / right[0]) if right[0] else 0.0
    detail = f"accuracy {right[1]:.4f}, in fp32 {right[0]:.4f}"
    return Comparison(agreement, float(_measure_changes(ours, theirs).max()), len(ours), detail)


def _measure_changes(ours: Floats, theirs: Floats) -> Floats:
    """Return the change of each probability; NaN and infinity count as 1."""
    return np.where(np.isfinite(theirs), np.abs(ours - theirs), 1.0)


def compare_spans(exact: Sequence[Span], others: Sequence[Span]) -> Comparison:
    """Compare answers to questions: the share of clear ones that stay at the same place."""
    pairs = [*zip(exact, others, strict=True)]
    changes = np.nan_to_num([abs(ours.score - theirs.score) for ours, theirs in pairs], nan=1.0)
    is_same = np.array([ours[:2] == theirs[:2] for ours, theirs in pairs])
    is_clear = np.array([ours.lead >= LEAD for ours in exact])
    return _summarise(is_same, is_clear, float(changes.max()), float(changes.mean()))


def compare_vectors(exact: Sequence[Floats], others: Sequence[Floats]) -> Comparison:
    """Compare vectors, (D,) of each item, and their similarities to each other; the change is 1 - the least cosine."""
    ours, theirs = (np.stack(each).astype(np.float64) for each in (exact, others))
    with np.errstate(all="ignore"):
        ours, theirs = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (ours, theirs))
        theirs = np.nan_to_num(theirs, nan=0.0, posinf=0.0, neginf=0.0)  # NaN and infinity agree with no vector
    cosines = np.clip((ours * theirs).sum(axis=1), -1.0, 1.0)
    above = np.triu_indices(len(ours), 1)
    ranks = compare_ranks((ours @ ours.T)[above], (theirs @ theirs.T)[above]).agreement if len(ours) > 2 else 1.0
    detail = f"mean cosine {cosines.mean():.4f}, ranks of similarities {ranks:.4f}"
    return Comparison(min(float(cosines.mean()), ranks), float(min(1.0, 1.0 - cosines.min())), len(ours), detail)


def compare_boxes(exact: Sequence[Boxes], others: Sequence[Boxes]) -> Comparison:
    """Compare by COCO's mean average precision; the change is the share of sure boxes without a half overlap."""
    classes = sorted({str(label) for each in exact for label in each.labels[each.scores >= SURE]})
    precisions, missed, sure = [], 0, 0
    for label in classes:
        ours = [each.corners[(each.labels == label) & (each.scores >= SURE)] for each in exact]
        theirs = [(each.scores[each.labels == label], each.corners[each.labels == label]) for each in others]
        count = sum(map(len, ours))
        found = [_find_hits(ours, theirs, overlap) for overlap in OVERLAPS]
        precisions += [_measure_precision(hits, count) for hits in found]
        missed, sure = missed + count - int(found[0].sum()), sure + count
    return Comparison(float(np.mean(precisions or [0.0])), missed / max(1, sure), sure, f"{len(classes)} classes")


def _find_hits(ours: Sequence[Floats], theirs: Sequence[tuple[Floats, Floats]], overlap: float) -> NDArray[np.bool_]:
    """Return whether each of their boxes, best first over all images, matches a box of ours that is still free."""
    hits, scores = [], []
    for right, (sure, corners) in zip(ours, theirs, strict=True):
        is_free = np.ones(len(right), bool)
        for index in np.argsort(-sure, kind="stable"):
            overlaps = np.where(is_free, _measure_overlaps(right, corners[index]), 0.0)
            is_hit = bool(len(right)) and overlaps.max() >= overlap
            if is_hit:
                is_free[overlaps.argmax()] = False
            hits.append(is_hit)
            scores.append(sure[index])
    return np.array(hits, bool)[np.argsort(-np.array(scores), kind="stable")]


def _measure_overlaps(boxes: Floats, other: Floats) -> Floats:
    sides = np.minimum(boxes[:, 2:], other[2:]) - np.maximum(boxes[:, :2], other[:2])
    shared = np.clip(sides, 0, None).prod(axis=1)
    union = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) + (other[2:] - other[:2]).prod() - shared
    return np.asarray(shared / np.maximum(union, 1e-9))


def _measure_precision(hits: NDArray[np.bool_], count: int) -> float:
    """Return COCO's average precision: the mean, at 101 recalls, of the best precision at that recall or above."""
    recall = hits.cumsum() / count
    precision = hits.cumsum() / np.arange(1, len(hits) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(recall, np.linspace(0, 1, 101))
    return float(np.append(best, 0.0)[at].mean())


def compare_maps(exact: Sequence[Floats], others: Sequence[Floats]) -> Comparison:
    """Compare maps of classes, (H, W) of each item: the mean intersection over union of fp32's classes."""
    ours, theirs = (np.concatenate([each.ravel() for each in maps]) for maps in (exact, others))
    shared = [
        ((ours == value) & (theirs == value)).sum() / ((ours == value) | (theirs == value)).sum()
        for value in np.unique(ours)
    ]
    changed = [float(np.mean(one != other)) for one, other in zip(exact, others, strict=True)]
    return Comparison(float(np.mean(shared)), max(changed), len(changed))


def compare_ranks(exact: Sequence[float] | Floats, others: Sequence[float] | Floats) -> Comparison:
    """Compare scores of pairs by the correlation of their ranks; the change is of their sigmoids."""
    ours, theirs = np.array(exact, np.float64), np.array(others, np.float64)
    if len(ours) < 2 or not np.isfinite([ours, theirs]).all():
        return Comparison(0.0, 1.0, len(ours))
    # Spearman's formula for ranks without ties.
    differences = ours.argsort().argsort() - theirs.argsort().argsort()
    correlation = 1 - 6 * (differences.astype(np.float64) ** 2).sum() / (len(ours) * (len(ours) ** 2 - 1))
    return Comparison(float(correlation), float(np.abs(sigmoid(ours) - sigmoid(theirs)).max()), len(ours))


def compare_values(exact: Sequence[Floats], others: Sequence[Floats]) -> Comparison:
    """Compare numbers, (labels,) of each item, by their largest change as a share of their label's deviation."""
    ours, theirs = np.stack(exact), np.stack(others)
    # Without a deviation, such as that of one sample, by their size.
    scale = np.where(ours.std(axis=0) > 0, ours.std(axis=0), np.abs(ours).max(axis=0))
    changes = np.abs(ours - theirs) / np.maximum(scale, np.finfo(np.float32).tiny)
    largest = float(np.where(np.isfinite(changes), changes, 1.0).max())
    return Comparison(max(0.0, 1.0 - largest), min(1.0, largest), len(ours), f"deviation {float(scale.max()):.4g}")
