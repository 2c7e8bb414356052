"""A PyTorch program that the user exported (.pt2) or scripted (.pt), on a GPU or with `engine: torch`."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from handlers.engines import EXPORTED, REJECTED, SCRIPTED, Arrays, Budget, Outputs, Shapes, available_threads
from handlers.engines.torch import DTYPES, TorchEngine, dtype_for
from handlers.errors import InvalidConfig, OutOfMemory, OutOfRange

ONLY_OUTPUT = "output"  # the name of a program's only output
OUTPUT = "output_{}"  # the names of several outputs


def load_program(folder: Path, device: torch.device) -> torch.nn.Module:
    """Load the program of an archive; InvalidConfig if it is missing or PyTorch cannot read it."""
    exported, scripted = folder / EXPORTED, folder / SCRIPTED
    try:
        if exported.is_file():
            program: Any = torch.export.load(exported)
            return program.module().to(device)  # type: ignore[no-any-return]
        if scripted.is_file():
            return torch.jit.load(scripted, map_location=device).eval()  # type: ignore[no-any-return,no-untyped-call]
    except (RuntimeError, ValueError, OSError) as error:
        raise InvalidConfig(f"PyTorch cannot read the model: {str(error).partition(chr(10))[0]}") from error
    raise InvalidConfig(f"engine: torch needs {EXPORTED} or {SCRIPTED}, which this archive lacks; use engine: auto")


def flat_outputs(results: Any, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Name the tensors that a program returned in any form: `names`, or else `output`, or `output_0` and so on."""
    if isinstance(results, Mapping):
        return dict(results)
    listed = list(results) if isinstance(results, list | tuple) else [results]
    own = [ONLY_OUTPUT] if len(listed) == 1 else [OUTPUT.format(index) for index in range(len(listed))]
    return dict(zip(names or own, listed, strict=True))


class ProgramEngine(TorchEngine):
    """Runs a program with its inputs in their order; outputs in BF16 become float32."""

    def __init__(
        self,
        program: torch.nn.Module,
        device: torch.device,
        inputs: Mapping[str, torch.dtype | None],
        outputs: Sequence[str],
        *,
        precision: str = "fp32",
        threads: int = 0,
    ) -> None:
        """Run a program that is on its device already.

        `inputs` has the dtype that each input is converted to, or None, in the order of the program's parameters.
        With `precision` `fp32` the program runs unchanged, whatever its weights are; others run it under autocast.
        """
        # Without TorchEngine's constructor: an exported program has no eval().
        torch.set_num_threads(available_threads(threads))
        self._module, self._device, self._outputs = program, device, tuple(outputs)
        self.input_names = tuple(inputs)
        dtype = dtype_for(device, precision)
        self._dtypes, self._cast = dict(inputs), None if dtype == torch.float32 else dtype
        self.description = f"torch {device} {next(name for name, each in DTYPES.items() if each == dtype)}"

    def _results(self, tensors: dict[str, torch.Tensor]) -> Mapping[str, object]:
        arguments = [tensor.to(self._dtypes[name] or tensor.dtype) for name, tensor in tensors.items()]
        with torch.autocast(self._device.type, self._cast) if self._cast else nullcontext():
            return flat_outputs(self._module(*arguments), self._outputs)

    def run(self, inputs: Arrays) -> Outputs:
        """Run the program once; OutOfRange if it rejects the values on a CPU, as ONNX Runtime does with its files."""
        try:
            return super().run(inputs)
        except OutOfMemory:
            raise
        except Exception as error:
            if self._device.type != "cpu":
                raise  # values do not fail there by themselves, but the program, or the device with all that follows
            raise OutOfRange(REJECTED) from error

    def record(self, examples: Sequence[Arrays], budget: Budget) -> Shapes:  # noqa: ARG002
        """Record nothing: outputs of a program may have any dtype and shape."""
        return []

    def _array(self, result: object) -> object:
        if not isinstance(result, torch.Tensor):
            return result  # the caller rejects it
        own = result.to("cpu", copy=True)  # a copy: the program may use the same memory for its next run
        return (own.float() if own.dtype in (torch.bfloat16, self._cast) else own).numpy()
