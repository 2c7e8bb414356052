"""OpenVINO runs an exported graph on the CPU, with a dynamic batch and in bf16 where the processor has it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import openvino

from handlers.engines import Arrays, Outputs, available_threads
from handlers.errors import InvalidConfig, OutOfMemory

# A failed allocation has one of these in its message; OpenVINO wraps it in a RuntimeError.
ALLOCATION_FAILURES = ("bad_alloc", "out of memory", "could not allocate", "failed to allocate")


class Stream:
    """One infer request of a compiled graph, which is an engine by itself beside the graph's others."""

    def __init__(self, compiled: openvino.CompiledModel, description: str) -> None:
        """Make an infer request.

        Args:
            compiled: a graph whose inputs and outputs carry the names that the handler uses.
            description: see `Engine.description`.
        """
        self.description = description
        self._request = compiled.create_infer_request()
        self.input_names = tuple(port.any_name for port in compiled.inputs)
        self._output_names = [output.any_name for output in compiled.outputs]

    def run(self, inputs: Arrays) -> Outputs:
        """See `Engine.run`."""
        try:
            # Inputs are read in place; outputs live in the request until its next run, so they are copied.
            results = self._request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        except RuntimeError as error:
            if any(sign in str(error).lower() for sign in ALLOCATION_FAILURES):
                raise OutOfMemory from error
            raise
        return {name: np.array(results[index]) for index, name in enumerate(self._output_names)}


class OpenVinoEngine(Stream):
    """A compiled graph that takes all of its threads for one run."""

    # Two were the best on the machines that this was measured on.
    best_streams = 2
    is_faster_whole = True

    def __init__(
        self,
        graph: Path,
        *,
        precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
        threads: int = 0,
    ) -> None:
        """Compile a graph.

        Args:
            graph: the .xml of an OpenVINO IR, its .bin beside it.
            precision: the arithmetic; `auto` is bf16 where the processor has instructions for it, else fp32.
            threads: how many threads this engine has; 0 for one on every core.

        Raises:
            InvalidConfig: the graph is missing, or the processor has no instructions for the precision.
        """
        if not graph.is_file():
            raise InvalidConfig(f"engine: openvino needs {graph.name}, which this archive lacks")
        self._core = openvino.Core()
        capabilities = self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if precision == "auto":
            precision = "bf16" if "BF16" in capabilities else "fp32"
        elif precision != "fp32" and precision.upper() not in capabilities:
            raise InvalidConfig(f"precision: this processor has no {precision} instructions; use fp32 or auto")
        self._graph, self._precision, self._threads = graph, precision, available_threads(threads)
        super().__init__(self._compiled(streams=1), f"openvino cpu {precision}")

    def divide(self, streams: int) -> Sequence[Stream]:
        """See `handlers.engines.Divisible`; the streams share one more copy of the weights."""
        streams = min(streams, self._threads)
        if streams < 2:
            return ()
        compiled = self._compiled(streams)
        return [Stream(compiled, self.description) for _ in range(streams)]

    def _compiled(self, streams: int) -> openvino.CompiledModel:
        return self._core.compile_model(
            self._graph,
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": {"fp32": "f32", "fp16": "f16"}.get(self._precision, self._precision),
                "INFERENCE_NUM_THREADS": self._threads,
                "NUM_STREAMS": streams,
                "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
                # Two workers would pin themselves to the same cores.
                "ENABLE_CPU_PINNING": False,
            },
        )
