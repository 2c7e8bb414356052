"""The errors of a device: which of them mean that memory is missing, and after which it computes nothing more."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from handlers.engines import end_worker
from handlers.errors import OutOfMemory, reason

# The message of a failed allocation by cuBLAS or cuDNN contains one of these.
ALLOCATION_FAILURES = ("_ALLOC_FAILED", "CUDA error: out of memory")
# cuDNN's messages if it has no memory to work in, or lacks a library (pytorch#108645): free memory distinguishes them.
WORKSPACE_FAILURES = ("unable to find an engine to execute this computation", "unable to find a valid cudnn algorithm")
# Below this share of a GPU's memory, cuDNN lacks memory.
LITTLE_FREE = 0.1


@contextmanager
def memory_errors(device: torch.device) -> Iterator[None]:
    """Raise OutOfMemory if PyTorch has no memory left on a device; end the worker if its GPU computes nothing more."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if device.type == "cuda":
            _check_context(device)
            # The blocks of the failed attempt are released before a smaller one is tried.
            torch.cuda.empty_cache()
        is_library = any(sign in str(error) for sign in ALLOCATION_FAILURES)
        if device.type == "cuda" and any(sign in str(error).lower() for sign in WORKSPACE_FAILURES):
            free, total = torch.cuda.mem_get_info(device)
            is_library = free < LITTLE_FREE * total
        if is_library or isinstance(error, torch.OutOfMemoryError | MemoryError):
            raise OutOfMemory from error
        raise


def _check_context(device: torch.device) -> None:
    """End the worker after an error that CUDA repeats in every later call, such as an index outside of its table."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        end_worker(f"{device} cannot compute any more: {reason(error)}")
