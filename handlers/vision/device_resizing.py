"""Resizing on a GPU, where that is faster than on the threads that decode: on a machine with few cores for each GPU.

Preprocessing -> choose: compared and timed while the worker loads -> DevicePreprocessing, or Preprocessing itself

Only code that runs PyTorch imports this module.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from handlers.engines.torch import memory_errors
from handlers.errors import reason
from handlers.vision.preprocessing import Box, Preprocessing

logger = logging.getLogger(__name__)

# Pillow's filter that is made here, and the bits of its factors (PRECISION_BITS in its Resample.c).
FILTER, BITS = "bilinear", 22
# Larger images, which no scaled decode leaves, would need gigabytes of a GPU's memory. Of images that are twice as high
# as wide, Pillow 13 resizes the columns first.
MOST_PIXELS, TALL = 4_000_000, 1.9
# Sides of the images that decide, in shorter sides of a resized one, and their number: decoding leaves up to four.
SIDES, IMAGES = ((0.7, 1.1), (2.3, 1.6), (4.0, 3.0)), 60


@dataclass(frozen=True)
class DevicePreprocessing(Preprocessing):
    """Fits images into tensors of a device."""

    device: Any = None

    def fit(self, image: Image.Image) -> Any:
        """Resize and crop an RGB image: (H, W, 3) uint8 on the device."""
        with memory_errors(self.device), torch.inference_mode():
            fitted: Any = super().fit(image)
            fitted = fitted if isinstance(fitted, torch.Tensor) else torch.from_numpy(fitted.copy()).to(self.device)
            if fitted.is_cuda:
                # The thread that runs the model has another stream.
                torch.cuda.current_stream(self.device).synchronize()
            return fitted

    def cut(self, image: Image.Image, resized: tuple[int, int], box: Box) -> Any:
        width, height = image.size
        if height > TALL * width or width * height > MOST_PIXELS:
            return super().cut(image, resized, box)
        host = torch.empty((height, width, 3), dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        host.numpy()[:] = image
        pixels, (left, top, right, bottom) = host.to(self.device, non_blocking=True), box
        for axis, own, wanted, side in (
            (1, width, resized[0], slice(left, right)),
            (0, height, resized[1], slice(top, bottom)),
        ):
            places, factors = (torch.from_numpy(each[side]).to(self.device) for each in find_factors(own, wanted))
            taps = pixels[(slice(None),) * axis + (places,)].int()
            sums = (taps * factors[(..., *(None,) * (2 - axis))]).sum(axis + 1, dtype=torch.int32)
            pixels = (sums + 2 ** (BITS - 1) >> BITS).to(torch.uint8)
        return pixels


@lru_cache(256)
def find_factors(own: int, wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Find the pixels of an axis that make each new one, and their factors, (wanted, K), as Pillow does."""
    scale = own / wanted
    support = max(scale, 1.0)
    centres = (np.arange(wanted)[:, None] + 0.5) * scale
    first, last = (centres - support + 0.5).clip(0).astype(int), (centres + support + 0.5).astype(int).clip(max=own)
    places = first + np.arange((last - first).max())
    factors = (1 - np.abs((places - centres + 0.5) * (1 / support))).clip(0) * (places < last)
    factors /= factors.sum(1, keepdims=True)
    return places.clip(max=own - 1), (factors * 2**BITS + 0.5).astype(np.int32)


def choose(own: Preprocessing, device: Any, threads: int) -> Preprocessing:
    """Return the faster preprocessing for so many threads; `own` if the device makes other pixels."""
    is_like = own.is_antialiased and own.interpolation == FILTER and isinstance(own.resize, int)
    if not is_like or own.least_side < max(own.crop or (0,)):
        return own
    found, chance = DevicePreprocessing(**asdict(own), device=device), np.random.default_rng(0)
    shapes = (np.array([[high, wide] for wide, high in SIDES]) * own.least_side).astype(int)
    images = [Image.fromarray(chance.integers(0, 256, (*shape, 3), np.uint8)) for shape in shapes]
    try:
        for image in images:
            if not np.array_equal(found.fit(image).cpu().numpy(), own.fit(image)):
                raise ValueError(f"{device} makes other pixels")
        device_s, own_s = (_time_s(each.fit, images, threads) for each in (found, own))
    except Exception as error:
        logger.warning("Resizing: on the processor, %s", reason(error))
        return own
    rates = (IMAGES / device_s, device, IMAGES / own_s)
    logger.info("Resizing: %.0f images/s on %s, %.0f on the processor; the faster one is used", *rates)
    return found if device_s < own_s else own


def _time_s(fit: Callable[[Image.Image], Any], images: list[Image.Image], threads: int) -> float:
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(2):  # the first time, threads allocate memory
            started_s = time.perf_counter()
            list(pool.map(fit, (images * IMAGES)[:IMAGES]))
        return time.perf_counter() - started_s
