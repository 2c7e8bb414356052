"""OpenVINO runs an exported graph on the CPU, with a dynamic batch, in int8, bf16 or fp32.

model.xml, model-int8.xml, the processor's capabilities -> precisions to choose from -> a compiled graph
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, cast

import numpy as np
import openvino
from numpy.typing import NDArray

from handlers.aliases import Array
from handlers.archive_files import INT8_GRAPH
from handlers.engines import (
    ALLOCATION_FAILURES,
    Arrangement,
    Arrays,
    Outputs,
    available_threads,
    end_worker,
    stream_counts,
)
from handlers.engines.compilation import cache_dir, note_crash, read_crash
from handlers.engines.cores import usable_cores
from handlers.errors import InvalidConfig, OutOfMemory

logger = logging.getLogger(__name__)

Precision = Literal["auto", "fp32", "bf16", "fp16", "int8"]

UNWRITTEN = 0xA5  # the byte that marks an output that has been read
LEAST_MARK = 8  # the fewest bytes of a mark: no eight bytes of an output have this value by chance
MOST_MARK = 64
# This version ends the process with SIGFPE if it compiles rotary positions in bf16 for one thread (openvino#33300).
CRASHES_ON_ROTARY = "2026.4."
# The most graphs that are kept because they cannot be freed, each with a copy of the weights. With one more the worker
# ends.
MOST_BROKEN = 8


def int8_graph(graph: Path) -> Path:
    return graph.with_name(INT8_GRAPH)


def candidates(capabilities: Collection[str], *, has_int8: bool) -> tuple[str, ...]:
    """List the precisions that `auto` may choose if they agree with fp32, the likeliest first.

    A processor with bf16 may be faster in fp32: a Xeon with AVX-512 but without AMX needs 1.8 times as long for
    ResNet-152 in bf16.
    """
    existing = {"bf16": "BF16" in capabilities, "fp32": True, "int8": has_int8}
    return tuple(precision for precision, exists in existing.items() if exists)


class Stream:
    """One infer request of a compiled graph, an engine beside the graph's other requests.

    A run that fails leaves its state in the graph (OpenVINO 2026.4): after a shape that the graph rejects, it rejects a
    good one. So a graph that has failed is not used again: the next run compiles another one, with `compile_again`.

    With one thread, or without memory, a run that fails may even end without an error and leave the outputs of the
    previous run, which are other clients' results. Outputs are therefore marked when they have been read, and a mark
    that is still there is an error. After MOST_BROKEN of these errors the worker ends, so that TorchServe starts
    another. It also ends if the graph cannot be compiled again: the process has no memory or no threads left.
    """

    def __init__(
        self, compiled: openvino.CompiledModel, description: str, compile_again: Callable[[], openvino.CompiledModel]
    ) -> None:
        self.description = description
        self._compile_again = compile_again
        self._request: openvino.InferRequest | None = compiled.create_infer_request()
        self._broken: list[openvino.InferRequest] = []
        self.input_names = tuple(port.any_name for port in compiled.inputs)
        self._output_names = [output.any_name for output in compiled.outputs]

    def run(self, inputs: Arrays) -> Outputs:
        request, self._request = self._request or self._make_again(), None
        try:
            # Inputs are read in place; outputs live in the request until its next run, so they are copied.
            results = request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        except RuntimeError as error:
            if any(sign in str(error).lower() for sign in ALLOCATION_FAILURES):
                raise OutOfMemory from error
            raise
        shared = {name: results[index] for index, name in enumerate(self._output_names)}
        starts = [start for array in shared.values() if (start := _start(array, inputs)) is not None]
        if any((start == UNWRITTEN).all() for start in starts):
            # A graph in this state can neither run nor be freed: freeing it ends the process without a message.
            self._broken.append(request)
            if len(self._broken) > MOST_BROKEN:
                end_worker(f"OpenVINO ended {len(self._broken)} runs without outputs")
            raise RuntimeError("OpenVINO ended a run without outputs and without an error")
        outputs = {name: np.array(array) for name, array in shared.items()}
        for start in starts:
            start.fill(UNWRITTEN)
        self._request = request
        return outputs

    def _make_again(self) -> openvino.InferRequest:
        try:
            return self._compile_again().create_infer_request()
        except RuntimeError as error:
            end_worker(f"OpenVINO cannot compile the model's graph again: {error}")


def _start(array: Array, inputs: Arrays) -> NDArray[np.uint8] | None:
    """Return the first bytes of an output; None if too few can be marked, or if it shares the memory of an input."""
    if array.dtype.kind not in "fiu" or array.nbytes < LEAST_MARK or not array.flags.c_contiguous:
        return None
    if any(np.may_share_memory(array, each) for each in inputs.values()):
        return None
    return array.reshape(-1).view(np.uint8)[:MOST_MARK]


class OpenVinoEngine:
    """Runs a graph on all of its threads. The graph is compiled when it is first used."""

    deals_out = False

    def __init__(self, graph: Path, *, precision: Precision = "auto", threads: int = 0) -> None:
        """Read the .xml of an OpenVINO IR, with its .bin and its `int8_graph` beside it.

        With precision `auto` a trial chooses among `precisions`; without a trial it is fp32. The operations of an int8
        graph that stay in floating point run in bf16 if the processor has it, else in fp32.
        """
        self._core = openvino.Core()
        capabilities = self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        has_int8 = int8_graph(graph).is_file()
        if precision == "int8" and not has_int8:
            raise InvalidConfig(
                f"precision: int8 needs {int8_graph(graph).name}, which this archive lacks; "
                "build it with --precision int8"
            )
        if precision not in ("auto", "fp32", "int8") and precision.upper() not in capabilities:
            raise InvalidConfig(f"precision: this processor has no {precision} instructions; use fp32 or auto")
        if not graph.is_file() and precision != "int8":
            raise InvalidConfig(
                f"engine: openvino needs {graph.name}, which this archive lacks; build it with --engine openvino"
            )
        self._has_bf16 = "BF16" in capabilities
        self._graph, self._threads = graph, available_threads(threads)
        wanted: Sequence[str] = (precision,)
        if precision == "auto":
            wanted = candidates(capabilities, has_int8=has_int8)
        self.precisions: Sequence[str] = [each for each in wanted if not self._find_crash(each, 1)]
        if not self.precisions:
            crash = self._find_crash(wanted[0], 1)
            raise InvalidConfig(f"precision: {crash}; use fp32, or another number of threads")
        self._precision = "fp32" if "fp32" in self.precisions else self.precisions[0]
        self.model = self._core.read_model(int8_graph(graph) if self._precision == "int8" else graph)
        self.stream_counts: Sequence[int] = stream_counts(self._threads)
        self.input_names = tuple(port.any_name for port in self.model.inputs)
        shapes = {port.any_name: port.partial_shape for port in self.model.outputs}
        sizes = {name: [*shape][-1] for name, shape in shapes.items() if shape.rank.is_static and len(shape)}
        # The sizes of the last axes, without free ones.
        self.output_sizes = {name: size.get_length() for name, size in sizes.items() if size.is_static}
        self.description = f"openvino cpu {self._precision}"
        if len(self.precisions) == 1:
            # Without a choice, a graph that cannot be compiled is rejected at once.
            self._whole  # noqa: B018

    def run(self, inputs: Arrays) -> Outputs:
        return self._whole.run(inputs)

    def expect_accepted(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raise RuntimeError if the graph rejects these shapes of all inputs; the graph does not run."""
        self.model.clone().reshape({name: list(shape) for name, shape in shapes.items()})

    def in_precision(self, precision: str) -> "OpenVinoEngine":
        if [*self.precisions] == [precision]:
            return self
        return OpenVinoEngine(self._graph, precision=cast(Precision, precision), threads=self._threads)

    def divide(self, streams: int) -> Arrangement:
        streams = min(streams, self._threads)
        if streams < 2 or self._find_crash(self._precision, streams):
            return Arrangement(self)
        compiled = self._compiled(streams, self._threads)
        one = partial(self._compiled, 1, self._threads // streams)
        # The streams share a second copy of the weights.
        return Arrangement(self, [Stream(compiled, self.description, one) for _ in range(streams)])

    @cached_property
    def _whole(self) -> Stream:
        whole = partial(self._compiled, 1, self._threads)
        return Stream(whole(), self.description, whole)

    def _find_crash(self, precision: str, streams: int) -> str:
        """Describe the crash of a compilation, known or noted by a former process, and log it; empty without one."""
        crash = read_crash(self._note(precision, self._threads, streams))
        is_for_one = min(self._threads, usable_cores()) // streams < 2
        if not crash and is_for_one and self._arithmetic(precision) == "bf16" and self._crashes_for_one:
            crash = "SIGFPE, openvino#33300"
        if not crash:
            return ""
        words = (
            f"OpenVINO crashes while it compiles {precision} for {streams} streams, {self._threads} threads: {crash}"
        )
        logger.warning("Not used: %s", words)
        return words

    @cached_property
    def _crashes_for_one(self) -> bool:
        is_rotary = b'type="Sin"' in self._xml and b'type="Cos"' in self._xml
        return is_rotary and openvino.get_version().startswith(CRASHES_ON_ROTARY)

    @cached_property
    def _xml(self) -> bytes:
        return self._graph.read_bytes() if self._graph.is_file() else b""

    def _arithmetic(self, precision: str) -> str:
        return ("bf16" if self._has_bf16 else "fp32") if precision == "int8" else precision

    def _note(self, *arrangement: object) -> Path:
        key = hashlib.sha256(self._xml + repr((arrangement, openvino.get_version())).encode()).hexdigest()[:32]
        return cache_dir(self._graph.parent) / f"crash-{key}.txt"

    def _compiled(self, streams: int, threads: int) -> openvino.CompiledModel:
        arithmetic = self._arithmetic(self._precision)
        with note_crash(self._note(self._precision, threads, streams)):
            return self._core.compile_model(
                self.model,
                "CPU",
                {
                    "INFERENCE_PRECISION_HINT": {"fp32": "f32", "fp16": "f16"}.get(arithmetic, arithmetic),
                    "INFERENCE_NUM_THREADS": threads,
                    "NUM_STREAMS": streams,
                    "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
                    "ENABLE_CPU_PINNING": False,  # two workers would pin themselves to the same cores
                },
            )
