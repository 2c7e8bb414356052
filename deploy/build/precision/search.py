"""Which layers of an int8 graph stay in floating point, so that its answers stay near to fp32's.

    int8 graph -> its layers, in groups -> each group without its rounding -> how near the outputs come -> ranked
    ranked     -> the worst one, two, three, ... -> a graph where these compute in floating point, on weights in int8

NNCF's own accuracy control does the same, one layer at a time and for as long as it takes: hours, of ResNet-152 on two
cores. Here there are as many groups as the time allows, and it is ranked by inputs that calibrated, not by those that
prove. It is the rounding of activations that hurts: weights have a scale for each channel.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

# Operations that compute in int8 where their inputs are rounded; others only move what they are given.
COMPUTING = frozenset({"Convolution", "GroupConvolution", "ConvolutionBackpropData", "MatMul", "Add", "Multiply"})
ROUNDING = "FakeQuantize"
# Layers that may stay in floating point, as a share of all. With more of them int8 gains little.
MOST_KEPT = 0.5


def layers_of(graph: Path) -> list[str]:
    """Name the layers of an int8 graph's file; see `layers`."""
    return layers(openvino.Core().read_model(graph))


def write_released(quantised: Path, names: Sequence[str], out: Path) -> None:
    """Write an int8 graph once more, with layers of it in floating point; see `release`."""
    graph = openvino.Core().read_model(quantised)
    release(graph, names)
    out.parent.mkdir(parents=True, exist_ok=True)
    openvino.save_model(graph, out, compress_to_fp16=False)


def layers(graph: openvino.Model) -> list[str]:
    """Name the layers of an int8 graph that compute in int8, in the order in which they run."""
    return [operation.get_friendly_name() for operation in graph.get_ordered_ops() if _rounded(operation)]


def _rounded(operation: openvino.Node) -> list[int]:
    """Tell which inputs of an operation are rounded to int8."""
    if operation.get_type_name() not in COMPUTING:
        return []
    nodes = [source.get_node() for source in operation.input_values()]
    return [number for number, node in enumerate(nodes) if node.get_type_name() == ROUNDING]


def release(graph: openvino.Model, names: Sequence[str]) -> None:
    """Give layers of a graph the inputs that they had before these were rounded; the graph is changed."""
    wanted = set(names)
    for operation in graph.get_ops():
        if operation.get_friendly_name() in wanted:
            for number in _rounded(operation):
                rounding = operation.input_value(number).get_node()
                operation.input(number).replace_source_output(rounding.input_value(0))


def ranked(exact: Path, quantised: Path, samples: Sequence[Arrays], longest_s: float) -> list[list[str]]:
    """Rank the layers of an int8 graph by what their rounding does to its outputs.

    Args:
        exact: the .xml of the graph in fp32.
        quantised: that of the int8 graph.
        samples: inputs of the graph, at least one.
        longest_s: how long it may take, in seconds; there are as many groups of layers as fit.

    Returns:
        Groups of neighbouring layers, those first without whose rounding the outputs are nearest to fp32's.
    """
    ends_s = time.perf_counter() + longest_s
    core = openvino.Core()
    wanted = _outputs(core, core.read_model(exact), samples)

    def distance(names: Sequence[str]) -> float:
        graph = core.read_model(quantised)
        release(graph, names)
        return _distance(wanted, _outputs(core, graph, samples))

    names = layers(core.read_model(quantised))
    if not names:
        return []
    started = time.perf_counter()
    distance(names)
    once_s = time.perf_counter() - started
    count = int(min(len(names), max(2, (ends_s - time.perf_counter()) / once_s)))
    distances: list[tuple[float, int, list[str]]] = []
    for number, places in enumerate(np.array_split(np.arange(len(names)), min(count, len(names)))):
        if distances and time.perf_counter() > ends_s:
            break
        group = [names[place] for place in places]
        distances.append((distance(group), number, group))
    return [group for _, _, group in sorted(distances)]


def tries(groups: Sequence[Sequence[str]], count: int) -> Iterator[list[str]]:
    """Give the layers to keep in floating point, in one try after the other: half as many groups more each time.

    Args:
        groups: of `ranked`.
        count: how many layers there are.
    """
    size = 1
    while size <= len(groups):
        kept = [name for group in groups[:size] for name in group]
        if len(kept) > MOST_KEPT * count:
            return
        yield kept
        size += max(1, size // 2)


def _outputs(core: openvino.Core, graph: openvino.Model, samples: Sequence[Arrays]) -> list[list[NDArray[Any]]]:
    """Run a graph without any other rounding: floating point is fp32 here."""
    run = core.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [[np.array(output, np.float64) for output in run(dict(sample)).values()] for sample in samples]


def _distance(wanted: Sequence[Sequence[NDArray[Any]]], found: Sequence[Sequence[NDArray[Any]]]) -> float:
    """The mean over samples and outputs of |found - wanted|^2 / |wanted|^2; infinite where there are no numbers."""
    ratios = [
        np.square(ours - theirs).sum() / max(np.square(ours).sum(), 1e-30)
        for row, other in zip(wanted, found, strict=True)
        for ours, theirs in zip(row, other, strict=True)
    ]
    mean = float(np.mean(ratios))
    return mean if np.isfinite(mean) else float("inf")
