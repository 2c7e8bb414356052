"""PyTorch runs modules eagerly, or on CUDA graphs: the engine of GPUs, and the tests' oracle of OpenVINO."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import numpy as np
import torch

from handlers.engines import Arrays, Budget, Outputs, Shapes, available_threads, end_worker, graphs
from handlers.errors import InvalidConfig, OutOfMemory, reason, where

logger = logging.getLogger(__name__)

Precision = Literal["auto", "fp32", "bf16", "fp16"]
# PyTorch's default rounds the factors of convolutions in fp32 to TF32's 10 bits of mantissa.
torch.backends.cudnn.allow_tf32 = False
# cuDNN's attention, the default on Hopper and newer, plans for every new shape in every thread: tens of milliseconds.
torch.backends.cuda.enable_cudnn_sdp(False)
# The message of a failed allocation by cuBLAS or cuDNN contains one of these.
ALLOCATION_FAILURES = ("_ALLOC_FAILED", "CUDA error: out of memory")
# cuDNN's messages if it has no memory to work in, or lacks a library (pytorch#108645): free memory distinguishes them.
WORKSPACE_FAILURES = ("unable to find an engine to execute this computation", "unable to find a valid cudnn algorithm")
LITTLE_FREE = 0.1  # below this share of a GPU's memory, cuDNN lacks memory
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
        is_library = any(sign in str(error) for sign in ALLOCATION_FAILURES)
        if device.type == "cuda":
            _check_context(device)
            free, total = torch.cuda.mem_get_info(device)
            is_library |= free < LITTLE_FREE * total and any(sign in str(error).lower() for sign in WORKSPACE_FAILURES)
            torch.cuda.empty_cache()  # the blocks of the failed attempt are released before a smaller one is tried
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
    """Runs a module that is on its device and in its precision already.

    The hook `load` of a task with its own network:

        from network import Network  # a module beside the task

        def load(self):
            network, device = Network(), self.archive.device
            network.load_state_dict(torch.load(self.archive.checkpoint_dir / "network.pt", weights_only=True))
            return TorchEngine(network.to(device), device, ["pixels"], ["scores"])
    """

    _graphs: graphs.Graphs | None = None

    def __init__(
        self,
        module: torch.nn.Module,
        device: torch.device,
        inputs: Sequence[str],
        outputs: Sequence[str],
        threads: int = 0,
    ) -> None:
        """Run a module: it has `inputs` as keyword arguments, and returns one tensor or a tuple, named `outputs`."""
        torch.set_num_threads(available_threads(threads))
        self._module, self._device, self._outputs = module.eval(), device, tuple(outputs)
        self.input_names = tuple(inputs)
        self._dtype = next((each.dtype for each in module.parameters()), torch.float32)
        self.description = f"torch {device} {str(self._dtype).removeprefix('torch.')}"

    @torch.inference_mode()
    def record(self, examples: Sequence[Arrays], budget: Budget) -> Shapes:
        """Record CUDA graphs; see Recordable."""
        if (recorder := graphs.make_recorder(self._device)) is None:
            return []
        recorded = graphs.Graphs(recorder, self._device, self._dtype, self._results, memory_errors)
        shapes = recorded.record(examples, budget)
        self._graphs = recorded
        return shapes

    @torch.inference_mode()
    def run(self, inputs: Arrays) -> Outputs:
        arrays = {name: np.asarray(inputs[name], order="C") for name in self.input_names}
        with memory_errors(self._device):
            if self._graphs and (outputs := self._run_graph(self._graphs, arrays)) is not None:
                return outputs
            tensors = {n: torch.from_numpy(each).to(self._device, non_blocking=True) for n, each in arrays.items()}
            return {name: self._array(result) for name, result in self._results(tensors).items()}

    def _run_graph(self, recorded: graphs.Graphs, arrays: Arrays) -> Outputs | None:
        """Run a micro-batch on a graph; None if it has to run eagerly."""
        try:
            return recorded.run(arrays)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError):
                self._graphs = None
                logger.warning("CUDA graphs: not used any more: %s", where(error))
            return None

    def _results(self, tensors: dict[str, torch.Tensor]) -> Mapping[str, Any]:
        results = self._module(**tensors)
        return dict(zip(self._outputs, results if isinstance(results, tuple) else (results,), strict=True))

    def _array(self, result: Any) -> Any:
        return (result.float() if result.is_floating_point() else result).cpu().numpy()
