"""PyTorch runs modules eagerly: the engine of GPUs, and the tests' oracle of OpenVINO."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np
import torch

from handlers.engines import Arrays, Budget, Outputs, Shapes, available_threads, graphs
from handlers.engines.blocks import Layout, Sides, to_device
from handlers.engines.device_errors import memory_errors
from handlers.engines.graphs import Graphs
from handlers.errors import InvalidConfig, where

logger = logging.getLogger(__name__)

Precision = Literal["auto", "fp32", "bf16", "fp16"]
# PyTorch's default rounds the factors of convolutions in fp32 to TF32's 10 bits of mantissa.
torch.backends.cudnn.allow_tf32 = False
# cuDNN's attention, the default on Hopper and newer, plans for every new shape in every thread: tens of milliseconds.
torch.backends.cuda.enable_cudnn_sdp(False)
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


class TorchEngine:
    """Runs a module that is on its device and in its precision already."""

    _graphs: Graphs | None = None

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
        self._dtype = next((each.dtype for each in module.parameters()), torch.float32)
        self.description = f"torch {device} {str(self._dtype).removeprefix('torch.')}"

    @torch.inference_mode()
    def record(self, examples: Sequence[tuple[Arrays, Sequence[int]]], budget: Budget) -> Shapes:
        """Record CUDA graphs; see Recordable."""
        if (recorder := graphs.make_recorder(self._device)) is None:
            return []
        recorded = Graphs(recorder, self._device, self._dtype, self._results)
        shapes = recorded.record(examples, budget)
        self._graphs = recorded
        return shapes

    @torch.inference_mode()
    def run(self, inputs: Arrays) -> Outputs:
        arrays = {name: np.asarray(inputs[name], order="C") for name in self.input_names}
        with memory_errors(self._device):
            outputs = self._run_graph(self._graphs, arrays) if self._graphs else None
            return self._read(self._results(self._tensors(arrays)), arrays) if outputs is None else outputs

    def _run_graph(self, recorded: Graphs, arrays: Arrays) -> Outputs | None:
        """Run a micro-batch on a graph; None if it has to run eagerly."""
        try:
            return recorded.run(arrays)
        except torch.OutOfMemoryError:
            return None
        except RuntimeError as error:
            self._graphs = None
            logger.warning("CUDA graphs: not used any more: %s", where(error))
            return None

    def _tensors(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        if self._device.type == "cpu":
            return {name: torch.from_numpy(array) for name, array in arrays.items()}
        layout = Layout(arrays)
        block = torch.empty(layout.size, dtype=torch.uint8, device=self._device)
        to_device(layout, arrays, block)
        return layout.tensors(block)

    def _results(self, tensors: dict[str, torch.Tensor]) -> Mapping[str, Any]:
        results = self._module(**tensors)
        return dict(zip(self._outputs, results if isinstance(results, tuple) else (results,), strict=True))

    def _read(self, results: Mapping[str, Any], arrays: Arrays) -> Outputs:
        rows = len(arrays[self.input_names[0]])
        sides = None if self._device.type == "cpu" else Sides.of(results, rows)
        if sides is not None:
            return sides.read(rows)
        return {name: result.float().cpu().numpy() for name, result in results.items()}
