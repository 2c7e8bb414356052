"""The towers of a model as one engine: each micro-batch runs on the tower that has its inputs."""

from collections.abc import Sequence
from typing import Any

from handlers.engines import Arrangement, Arrays, Budget, Engine, Outputs, Recordable, Shapes
from handlers.engines.openvino import OpenVinoEngine


class TowerEngines:
    """Engines of one device and precision, whose inputs have different names."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._by_input = {name: engine for engine in engines for name in engine.input_names}
        self.input_names = tuple(self._by_input)
        self.description = engines[0].description

    def run(self, inputs: Arrays) -> Outputs:
        return self._by_input[next(iter(inputs))].run(inputs)

    def record(self, examples: Sequence[Arrays], budget: Budget) -> Shapes:
        """Record CUDA graphs of every tower with an equal part of the budget; see Recordable."""
        engines, shapes = [each for each in {*self._by_input.values()} if isinstance(each, Recordable)], list[Any]()
        for engine in engines:
            own = [each for each in examples if self._by_input[next(iter(each))] is engine]
            part = budget._replace(seconds=budget.seconds / len(engines), bytes=budget.bytes / len(engines))
            shapes += engine.record(own, part)
        return shapes


class TowerGraphs(TowerEngines):
    """Runs graphs of OpenVINO in any of their precisions, on the whole engine or on streams, each with all graphs."""

    deals_out = OpenVinoEngine.deals_out

    def __init__(self, graphs: Sequence[OpenVinoEngine]) -> None:
        super().__init__(graphs)
        self._graphs = tuple(graphs)
        self.precisions, self.stream_counts = graphs[0].precisions, graphs[0].stream_counts

    def in_precision(self, precision: str) -> "TowerGraphs":
        return TowerGraphs([graph.in_precision(precision) for graph in self._graphs])

    def divide(self, streams: int) -> Arrangement:
        divided = [graph.divide(streams).streams for graph in self._graphs]
        return Arrangement(self, [TowerEngines(each) for each in zip(*divided, strict=True)])
