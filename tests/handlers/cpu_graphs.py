"""A GPU's graphs on the CPU: static memory as on a GPU, and a replay runs the module on it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from handlers.engines import graphs
from handlers.engines.graphs import Run


class Gpu(str):
    """A device that torch computes on, and the handlers take for a GPU."""

    type = "gpu"


GPU: Any = Gpu("cpu")


class CpuRecorder:
    """Counts replays; a test may set the effort of a run, and the free memory after each recording."""

    def __init__(self) -> None:
        self.recorded, self.replays, self.effort = 0, 0, (1.0, 1.0, 0)
        self.pool_bytes: list[int] = []

    def using(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def free_bytes(self) -> int:
        return 2**40 - sum(self.pool_bytes[: self.recorded])

    def measure(self, run: Run) -> tuple[float, float, int]:
        run()
        return self.effort

    def record(self, run: Run) -> tuple[Callable[[], None], torch.Tensor]:
        self.recorded += 1
        static = run().clone()

        def replay() -> None:
            self.replays += 1
            static.copy_(run())

        return replay, static


def use_cpu_graphs(patch: pytest.MonkeyPatch) -> CpuRecorder:
    recorder = CpuRecorder()
    patch.setattr("handlers.base._device", lambda _: GPU)
    patch.setattr(graphs, "make_recorder", lambda device: None if device.type == "cpu" else recorder)
    return recorder


def use_graphs(patch: pytest.MonkeyPatch, device: str) -> None:
    if device == "cpu":
        use_cpu_graphs(patch)
    else:
        patch.setattr("handlers.base._device", lambda _: torch.device(device, 0))
