"""The networks that are served as ONNX files, with random weights of one seed: what is measured is their time.

    small: a convolutional network for digits, 1x28x28 -> 10, some 0.1 ms a row
    deep(units): convolutions, then dense layers, 3x32x32 -> 2048; units_for -> about 20 ms a row on this processor

Dense layers take hardly longer for 16 rows than for one, since their weights are what is moved; convolutions are bound
by arithmetic, and gain less. A unit has one of the former for two of the latter, so that a batch is worth its while, as
it is with most networks.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True, slots=True)
class Tuning:
    """Says how large the networks are, and how one is fitted to the processor."""

    # Channels of the convolutions on maps of 8 x 8: the size of a ResNet's third stage.
    channels: int = 256
    # Width of the dense layers: 17 MB of weights each.
    width: int = 2048
    # Rows of a batch: of the small network those of 64 clients at once, of the deep one those that take 0.2 s.
    small_batch: int = 64
    deep_batch: int = 16
    # Milliseconds that the deep network is to take for one row.
    target_ms: float = 20.0
    # Units of the network that is timed: enough that what is not a unit hardly counts.
    tried_units: int = 4
    # Runs that its time is the median of.
    runs: int = 15


TUNING = Tuning()
# Of the operators: old enough for every runtime here.
OPSET, IR_VERSION = 17, 8
INPUT, OUTPUT = "image", "scores"
# Their names, as models and files.
SMALL, DEEP = "small", "deep"


@dataclass(frozen=True, slots=True)
class Network:
    """A network on disk.

    Attributes:
        name: its name, as model and as file.
        path: its ONNX file.
        shape: the shape of one row of float32.
        batch_size: the most rows of a batch.
    """

    name: str
    path: Path
    shape: tuple[int, ...]
    batch_size: int

    def rows(self, count: int, seed: int = 0) -> Any:
        """Make rows, (count, *shape) float32."""
        return np.random.default_rng(seed).standard_normal((count, *self.shape), dtype=np.float32)


class _Graph:
    """A chain of operators that grows; `at` is the name of the last result."""

    def __init__(self, seed: int = 17) -> None:
        self.at = INPUT
        self._random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def weights(self, *shape: int, inputs: int) -> str:
        """Add weights whose sums over so many inputs neither grow nor vanish."""
        name = f"weights-{len(self._weights)}"
        values = self._random.standard_normal(shape, dtype=np.float32) * np.float32(inputs**-0.5)
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def add(self, operator: str, *others: str, **attributes: Any) -> str:
        """Apply an operator to the last result and to others."""
        result = f"{operator}-{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, [self.at, *others], [result], **attributes))
        self.at = result
        return result

    def convolve(self, before: int, after: int, size: int, *, depth: int = 1, **attributes: Any) -> None:
        """Add a convolution; of residual ones, their number, over which values do not grow either."""
        weights = self.weights(after, before, size, size, inputs=depth * before * size * size)
        self.add("Conv", weights, **attributes)

    def dense(self, before: int, after: int) -> None:
        """Add a dense layer."""
        self.add("MatMul", self.weights(before, after, inputs=before))

    def save(self, path: Path, shape: Sequence[int], outputs: int) -> None:
        """Write the file; the first dimension counts rows."""
        self._nodes[-1].output[0] = OUTPUT
        graph = helper.make_graph(
            self._nodes,
            path.stem,
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["rows", *shape])],
            [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["rows", outputs])],
            self._weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = IR_VERSION
        onnx.save(model, path)


def small(path: Path) -> Network:
    """Write the network for digits: two convolutions and two dense layers, 0.4 million weights."""
    shape, graph = (1, 28, 28), _Graph()
    for before, after in ((1, 16), (16, 32)):
        graph.convolve(before, after, 3, pads=[1, 1, 1, 1])
        graph.add("Relu")
        graph.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    graph.add("Flatten")
    graph.dense(32 * 7 * 7, 128)
    graph.add("Relu")
    graph.dense(128, 10)
    graph.save(path, shape, 10)
    return Network(path.stem, path, shape, TUNING.small_batch)


def deep(path: Path, units: int) -> Network:
    """Write the network of so many units: two residual convolutions each, then a dense layer each."""
    shape, graph = (3, 32, 32), _Graph()
    graph.convolve(3, TUNING.channels, 4, strides=[4, 4])
    for _ in range(2 * units):
        before = graph.at
        graph.convolve(TUNING.channels, TUNING.channels, 3, depth=2 * units, pads=[1, 1, 1, 1])
        graph.add("Relu")
        graph.add("Add", before)
    graph.add("GlobalAveragePool")
    graph.add("Flatten")
    for unit in range(units):
        graph.dense(TUNING.width if unit else TUNING.channels, TUNING.width)
        graph.add("Relu")
    graph.save(path, shape, TUNING.width)
    return Network(path.stem, path, shape, TUNING.deep_batch)


def milliseconds(run: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the median time of a run in ms; the first two are not counted."""
    times_ms = []
    for _ in range(TUNING.runs + 2):
        started_s = clock()
        run()
        times_ms.append(1e3 * (clock() - started_s))
    return median(times_ms[2:])


def units_for(tried_ms: float) -> int:
    """Return how many units take the time that is wanted, by the time that `tried_units` took."""
    return max(1, round(TUNING.tried_units * TUNING.target_ms / tried_ms))
