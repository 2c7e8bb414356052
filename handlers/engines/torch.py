"""PyTorch runs modules eagerly: the engine of GPUs, and the tests' oracle of OpenVINO."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import numpy as np
import torch

from handlers.engines import Arrays, Outputs, available_threads, end_worker
from handlers.errors import InvalidConfig, OutOfMemory, reason

Precision = Literal["auto", "fp32", "bf16", "fp16"]
# PyTorch's default rounds the factors of convolutions in fp32 to TF32's 10 bits of mantissa.
torch.backends.cudnn.allow_tf32 = False
# cuDNN's attention, the default on Hopper and newer, plans for every new shape in every thread: tens of milliseconds.
torch.backends.cuda.enable_cudnn_sdp(False)
# The message of a failed allocation by cuBLAS or cuDNN contains one of these.
ALLOCATION_FAILURES = ("_ALLOC_FAILED", "CUDA error: out of memory")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def torch_precision(precision: str) -> Precision:
    """Check that torch has a precision; InvalidConfig if only another engine has it."""
    if precision == "auto" or precision in DTYPES:
        return cast(Precision, precision)
    known = ", ".join(DTYPES)
    raise InvalidConfig(f"precision: torch, the engine of this model, has no {precision}; use auto or one of {known}")


def dtype_for(device: torch.device, precision: str) -> torch.dtype:
    """Return the dtype to run in; `auto` is bf16 or else fp16 on a GPU, and fp32 on a CPU: no build compares less."""
    if torch_precision(precision) != "auto":
        return DTYPES[precision]
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


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
        if is_library or isinstance(error, torch.OutOfMemoryError | MemoryError):
            raise OutOfMemory from error
        raise


def _check_context(device: torch.device) -> None:
    """End the worker after an error that CUDA repeats in every later call, such as an index outside of its table."""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        end_worker(f"{device} cannot compute any more: {reason(error)}")


class TorchEngine:
    """Runs a module that is on its device and in its precision already."""

    def __init__(
        self,
        module: torch.nn.Module,
        device: torch.device,
        inputs: Sequence[str],
        outputs: Sequence[str],
        threads: int = 0,
    ) -> None:
        """Run a module: it has `inputs` as keyword arguments, and returns one tensor or a tuple, named `outputs`.

        PyTorch's operators have so many `threads` on the CPU; 0 for one on every core.
        """
        torch.set_num_threads(available_threads(threads))
        self._module, self._device, self._outputs = module.eval(), device, tuple(outputs)
        self.input_names = tuple(inputs)
        precision = next((str(p.dtype).removeprefix("torch.") for p in module.parameters()), "float32")
        self.description = f"torch {device} {precision}"

    @torch.inference_mode()
    def run(self, inputs: Arrays) -> Outputs:
        with memory_errors(self._device):
            tensors = {
                name: torch.from_numpy(np.asarray(inputs[name], order="C")).to(self._device, non_blocking=True)
                for name in self.input_names
            }
            return {name: self._array(result) for name, result in self._results(tensors).items()}

    def _results(self, tensors: dict[str, torch.Tensor]) -> Mapping[str, Any]:
        results = self._module(**tensors)
        return dict(zip(self._outputs, results if isinstance(results, tuple) else (results,), strict=True))

    def _array(self, result: Any) -> Any:
        return result.float().cpu().numpy()
