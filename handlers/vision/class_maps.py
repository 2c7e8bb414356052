"""Find the likeliest class of each pixel of an image from logits that are fewer than its pixels. Pure."""

import numpy as np
from numpy.typing import NDArray

from handlers.probabilities import softmax
from handlers.vision.preprocessing import find_neighbours

# Logits that are enlarged at a time, 16 MB: those of a whole photograph and 150 classes are gigabytes.
MOST_ENLARGED = 4_000_000
HALF = 0.5  # share of the second neighbour from which it is the nearer one


def find_classes(logits: NDArray[np.float32], size: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Enlarge (classes, h, w) logits; return each pixel's likeliest class and the nearest logits' probability."""
    values = np.ascontiguousarray(logits.transpose(1, 2, 0))
    best = values.argmax(2).astype(np.uint8)
    (top, bottom, down), (left, right, across) = map(find_neighbours, values.shape[:2], size[::-1])
    classes = best[np.ix_(top, left)]
    # If four neighbours have one likeliest class, it is the likeliest everywhere between them.
    is_open = np.zeros(classes.shape, bool)
    for rows, columns in ((top, right), (bottom, left), (bottom, right)):
        is_open |= best[np.ix_(rows, columns)] != classes
    nearest = np.ix_(np.where(down < HALF, top, bottom), np.where(across < HALF, left, right))
    probabilities = softmax(values).max(2)[nearest]
    found = np.nonzero(is_open)
    for start in range(0, len(found[0]), MOST_ENLARGED // values.shape[2]):
        at = tuple(each[start : start + MOST_ENLARGED // values.shape[2]] for each in found)
        y, x = at
        shares = across[x, None]
        upper = values[top[y], left[x]] * (1 - shares) + values[top[y], right[x]] * shares
        lower = values[bottom[y], left[x]] * (1 - shares) + values[bottom[y], right[x]] * shares
        enlarged = softmax(upper * (1 - down[y, None]) + lower * down[y, None])
        classes[at], probabilities[at] = enlarged.argmax(1), enlarged.max(1)
    return classes, probabilities
