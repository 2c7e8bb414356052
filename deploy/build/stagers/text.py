"""Stages what an archive of a task on a transformers encoder holds, made from a Hugging Face folder or hub id."""

import shutil
import warnings
from pathlib import Path

import openvino
import torch
import transformers

from deploy.build.hub import checkpoint, pack
from deploy.build.sources import Source
from deploy.build.tasks import beside, task_class, task_of
from deploy.models import Engine, Model
from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.errors import Unfaithful, reason
from handlers.image_text.towers import TextTower
from handlers.text.config import TextConfig
from handlers.text.encoders import Encoder, Head, load_encoder
from handlers.text.sentence_modules import read_modules

# A configuration's names for how far a token sees, where it does not see all others.
WINDOWS = ("sliding_window", "local_attention")


def stage(model: Model, origin: Source, engine: Engine, folder: Path) -> None:
    """Write the checkpoint, without its weights for `openvino`, and model.xml with model.bin, but for `torch`.

    Raises:
        WeightsUnavailable: the model cannot be had, or only as a pickle.
        InvalidConfig: the configuration is wrong, or the folder holds no model for the task.
    """
    config: TextConfig = parse(task_of(model).settings_class(), model.config().get("handler"))
    if origin.kind == "folder" and head_of(model.handler).is_pooled:
        # A model of words, not of a transformer, has no config.json: its modules are named first.
        read_modules(Path(origin.location))
    with checkpoint(model, origin, with_code=config.trust_remote_code) as source:
        if engine != "torch":
            encoder = load_encoder(head_of(model.handler), source, trust_remote_code=config.trust_remote_code)
            openvino.save_model(export(encoder), folder / GRAPH, compress_to_fp16=False)
        pack(source, folder, with_weights=engine != "openvino")
    for name, path in beside(model, task_of(model)).items():
        shutil.copyfile(path, folder / name)


def head_of(task: str) -> Head:
    """Read what the class of a built-in task says of its model's head.

    Args:
        task: the name of a task on an encoder.
    """
    head: Head = task_class(task).head
    return head


def export(encoder: Encoder | TextTower) -> openvino.Model:
    """Export an encoder as a graph: (B, T) int64 inputs, any B and T, under the encoder's names."""
    # Two of one and three of the other: an axis of length one could be taken for a constant.
    example = {name: torch.ones(2, 3, dtype=torch.int64) for name in encoder.input_names}
    model = next((each for each in encoder.modules() if isinstance(each, transformers.PreTrainedModel)), None)
    if model is not None and any(getattr(model.config.get_text_config(), name, None) for name in WINDOWS):
        # Fused attention gives NaN for a token whose window holds padding alone, and later layers pass it on.
        model.set_attn_implementation("eager")
    with torch.no_grad(), warnings.catch_warnings():
        # Tracing warns of every Python branch in transformers; the check of fidelity finds those that matter.
        warnings.simplefilter("ignore")
        try:
            graph = openvino.convert_model(encoder.eval(), example_input=example)
        except Exception as error:
            raise Unfaithful(f"OpenVINO cannot convert it: {reason(error)}") from error
    for port, name in zip(graph.outputs, encoder.output_names, strict=True):
        port.get_tensor().set_names({name})
    graph.reshape({port: openvino.PartialShape([-1, -1]) for port in graph.inputs})
    return graph
