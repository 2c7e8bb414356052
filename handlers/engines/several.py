"""Several graphs of one archive as one engine: each micro-batch runs on the graph that takes its arrays."""

from collections.abc import Sequence

from handlers.engines import Arrangement, Arrays, Engine, Outputs
from handlers.engines.openvino import OpenVinoEngine


class SeveralEngines:
    """Runs a micro-batch on the engine that takes its arrays."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        """Join engines of one library, device and precision, whose inputs have different names."""
        self.engines = tuple(engines)
        self._by_input = {name: engine for engine in engines for name in engine.input_names}
        self.input_names = tuple(self._by_input)
        self.description = self.engines[0].description

    def run(self, inputs: Arrays) -> Outputs:
        """All of the arrays are inputs of one of the engines."""
        return self._by_input[next(iter(inputs))].run(inputs)


class SeveralGraphs(SeveralEngines):
    """The same of OpenVINO's graphs, which also run in several precisions and in streams."""

    engines: tuple[OpenVinoEngine, ...]
    deals_out = OpenVinoEngine.deals_out

    def __init__(self, engines: Sequence[OpenVinoEngine]) -> None:
        super().__init__(engines)
        self.precisions, self.stream_counts = engines[0].precisions, engines[0].stream_counts

    def in_precision(self, precision: str) -> "SeveralGraphs":
        return SeveralGraphs([each.in_precision(precision) for each in self.engines])

    def divide(self, streams: int) -> Arrangement:
        """Each stream has all graphs."""
        divided = [each.divide(streams).streams for each in self.engines]
        return Arrangement(self, [SeveralEngines(each) for each in zip(*divided, strict=True)])
