"""The program that makes an int8 graph of one in fp32, with NNCF's post-training quantisation.

    model.xml, inputs.npz -> nncf.quantize -> model-int8.xml

    .extras/int8/bin/python -m deploy.build.precision.quantise ORDER.json

NNCF brings more than a server needs, so it runs in an environment of its own. An order is JSON; see `Order`. Standard
library, numpy, openvino and nncf only.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be made of what.

    Attributes:
        graph: the .xml of a graph in fp32, its .bin beside it.
        inputs: an .npz of the model's inputs, "NUMBER/NAME" each: what NNCF sees of the activations.
        out: where the .xml is written, with its .bin.
        is_transformer: whether the model's attention is to be treated as NNCF knows to.
    """

    graph: str
    inputs: str
    out: str
    is_transformer: bool

    def to_json(self) -> str:
        """Write it as the program reads it."""
        return json.dumps(asdict(self))


def samples(path: Path) -> Iterator[dict[str, Any]]:
    """Read the model's inputs, one sample after the other, by name."""
    with np.load(path) as arrays:
        numbers = dict.fromkeys(key.partition("/")[0] for key in arrays.files)
        for number in numbers:
            names = (key for key in arrays.files if key.partition("/")[0] == number)
            yield {key.partition("/")[2]: arrays[key] for key in names}


def main(order: Order) -> None:
    """Quantise."""
    # Here and not above: it takes seconds, and only this program has it.
    import nncf  # noqa: PLC0415
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters  # noqa: PLC0415
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet  # noqa: PLC0415

    calibration = [*samples(Path(order.inputs))]
    # The widest range seen, where NNCF's default takes the mean of each input's, and biases corrected layer by layer.
    # Of 397 crops that calibration has not seen and that are no near ties, MobileNetV2 keeps 1.0000 so; 0.9899 with
    # NNCF's fast correction, 0.9924 with mean ranges, 0.9874 with both; smooth quantisation changes nothing.
    widest = AdvancedQuantizationParameters(activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX)
    advanced = None if order.is_transformer else widest
    quantised = nncf.quantize(
        openvino.Core().read_model(order.graph),
        nncf.Dataset(calibration),
        # Weights symmetric, activations by their own range: ReLU's lose nothing by it, all others gain.
        preset=nncf.QuantizationPreset.MIXED,
        target_device=nncf.TargetDevice.CPU,
        subset_size=len(calibration),
        model_type=nncf.ModelType.TRANSFORMER if order.is_transformer else None,
        # Layer by layer, MiniLM's mean cosine fell from 0.94 to 0.73.
        fast_bias_correction=order.is_transformer,
        # With int8 queries and keys, bf16 and AMX, OpenVINO 2026.4 answers padded texts wrongly: MiniLM's mean cosine
        # was 0.942 (unpadded, or without AMX, 0.995).
        ignored_scope=nncf.IgnoredScope(types=["ScaledDotProductAttention"], validate=False),
        advanced_parameters=advanced,
    )
    openvino.save_model(quantised, order.out, compress_to_fp16=False)


if __name__ == "__main__":
    main(Order(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
