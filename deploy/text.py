"""What an archive of a task on a transformers encoder holds, made from a Hugging Face folder or hub id."""

import shutil
import warnings
from pathlib import Path

import openvino
import torch

from deploy.hub import checkpoint
from deploy.models import Engine, Model
from deploy.sources import Source
from handlers.config import parse
from handlers.text.config import (
    QuestionAnsweringConfig,
    TextClassificationConfig,
    TextConfig,
    TokenClassificationConfig,
)
from handlers.text.encoders import Encoder, load_encoder

# Handler -> its settings.
CONFIGS: dict[str, type[TextConfig]] = {
    "text_classification": TextClassificationConfig,
    "token_classification": TokenClassificationConfig,
    "question_answering": QuestionAnsweringConfig,
    "sentence_embedding": TextConfig,
}


def stage(model: Model, origin: Source, engine: Engine, folder: Path) -> None:
    """Write the tokenizer and configuration, and model.xml with model.bin, model.safetensors, or both for `auto`.

    Raises:
        WeightsUnavailable: the model cannot be had, or only as a pickle.
        InvalidConfig: the configuration is wrong, or the folder holds no model for the task.
    """
    config = parse(CONFIGS[model.handler], model.config().get("handler"))
    with checkpoint(model, origin) as source:
        shutil.copytree(source, folder, dirs_exist_ok=True)
    if engine != "torch":
        encoder = load_encoder(model.handler, folder, trust_remote_code=config.trust_remote_code)
        openvino.save_model(export(encoder), folder / "model.xml", compress_to_fp16=False)
    if engine == "openvino":
        for weights in folder.glob("*.safetensors*"):
            weights.unlink()


def export(encoder: Encoder) -> openvino.Model:
    """The encoder as a graph: (B, T) int64 inputs, any B and T, under the encoder's names."""
    # Two of one and three of the other: an axis of length one could be taken for a constant.
    example = {name: torch.ones(2, 3, dtype=torch.int64) for name in encoder.input_names}
    with torch.no_grad(), warnings.catch_warnings():
        # Tracing warns of every Python branch in transformers; tests hold the graph against the model instead.
        warnings.simplefilter("ignore")
        graph = openvino.convert_model(encoder.eval(), example_input=example)
    for port, name in zip(graph.outputs, encoder.output_names, strict=True):
        port.get_tensor().set_names({name})
    graph.reshape({port: openvino.PartialShape([-1, -1]) for port in graph.inputs})
    return graph
