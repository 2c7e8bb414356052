"""The program that turns a graph in fp32 into one in int8, by NNCF's post-training quantisation.

    model.xml, inputs.npz -> nncf.quantize -> model-int8.xml

    .extras/int8/bin/python -m deploy.archives.precision.quantise GRAPH.xml INPUTS.npz OUT.xml cnn|transformer

NNCF has more dependencies than a server needs, so it runs in a separate environment. This file may import only the
standard library, numpy, openvino and nncf.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino

from torchserve_client.payloads import Json


def samples(path: Path) -> Iterator[Json]:
    """Read the model's inputs by name, sample by sample."""
    with np.load(path) as arrays:
        numbers = dict.fromkeys(key.partition("/")[0] for key in arrays.files)
        for number in numbers:
            names = (key for key in arrays.files if key.partition("/")[0] == number)
            yield {key.partition("/")[2]: arrays[key] for key in names}


def main(graph: str, inputs: str, out: str, kind: str) -> None:
    """Quantise `graph`; an array of `inputs` is named "NUMBER/NAME", and `kind` is transformer or cnn."""
    # Here and not above: it takes seconds, and only this program's environment has it.
    import nncf  # noqa: PLC0415
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters  # noqa: PLC0415
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet  # noqa: PLC0415

    is_transformer = kind == "transformer"
    calibration = [*samples(Path(inputs))]
    # The widest range (NNCF's default is the mean of the inputs' ranges); and biases corrected layer by layer.
    # Of 397 new crops without near ties, MobileNetV2 keeps 1.0000 so; 0.9899 with NNCF's fast correction, 0.9924 with
    # mean ranges, 0.9874 with both; smooth quantisation changes nothing.
    widest = AdvancedQuantizationParameters(activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX)
    advanced = None if is_transformer else widest
    quantised = nncf.quantize(
        openvino.Core().read_model(graph),
        nncf.Dataset(calibration),
        # Weights symmetric, activations by their own range: ReLU loses nothing by it, other activations gain.
        preset=nncf.QuantizationPreset.MIXED,
        target_device=nncf.TargetDevice.CPU,
        subset_size=len(calibration),
        model_type=nncf.ModelType.TRANSFORMER if is_transformer else None,
        fast_bias_correction=is_transformer,  # layer by layer, MiniLM's mean cosine fell from 0.94 to 0.73
        # With int8 queries and keys, bf16 and AMX, OpenVINO 2026.4 answers padded texts wrongly: MiniLM's mean cosine
        # was 0.942 (unpadded, or without AMX, 0.995).
        ignored_scope=nncf.IgnoredScope(types=["ScaledDotProductAttention"], validate=False),
        advanced_parameters=advanced,
    )
    openvino.save_model(quantised, out, compress_to_fp16=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
