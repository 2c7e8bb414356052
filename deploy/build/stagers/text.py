"""Stages what an archive of a task on a transformers encoder holds, made from a Hugging Face folder or hub id."""

import io
import logging
import shutil
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import openvino
import torch
import transformers

from deploy.build.hub import open_checkpoint, pack
from deploy.build.sources import Source
from deploy.build.tasks import find_staged_files, task_class, task_of
from deploy.models import Engine, ModelEntry
from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.errors import Unfaithful, reason
from handlers.image_text.towers import TextTower
from handlers.text.config import TextConfig
from handlers.text.encoders import Encoder, Head, load_encoder
from handlers.text.sentence_modules import read_modules

# A configuration's names for how far a token sees, where it does not see all others.
WINDOWS = ("sliding_window", "local_attention")


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write the checkpoint, without its weights for `openvino`, and model.xml with model.bin, but for `torch`.

    Raises:
        WeightsUnavailable: the model cannot be had, or only as a pickle.
        InvalidConfig: the configuration is wrong, or the folder holds no model for the task.
    """
    config: TextConfig = parse(task_of(model).settings_class(), model.config().get("handler"))
    if origin.kind == "folder" and read_head(model.handler).is_pooled:
        # A model of words, not of a transformer, has no config.json: its modules are named first.
        read_modules(Path(origin.location))
    with open_checkpoint(model, origin, with_code=config.trust_remote_code) as source:
        if engine != "torch":
            encoder = load_encoder(read_head(model.handler), source, trust_remote_code=config.trust_remote_code)
            openvino.save_model(export(encoder), folder / GRAPH, compress_to_fp16=False)
        pack(source, folder, with_weights=engine != "openvino")
    for name, path in find_staged_files(model, task_of(model)).items():
        shutil.copyfile(path, folder / name)


def read_head(task: str) -> Head:
    """Read what the class of a built-in task says of its model's head.

    Args:
        task: the name of a task on an encoder.
    """
    head: Head = task_class(task).head
    return head


def export(encoder: Encoder | TextTower) -> openvino.Model:
    """Export an encoder as a graph: (B, T) int64 inputs, any B and T, under the encoder's names.

    A trace is quick, and takes some sizes for constants; where it fails or does not run, torch.export has them all.

    Raises:
        Unfaithful: neither makes a graph.
    """
    model = next((each for each in encoder.modules() if isinstance(each, transformers.PreTrainedModel)), None)
    if model is not None and any(getattr(model.config.get_text_config(), name, None) for name in WINDOWS):
        # Fused attention gives NaN for a token whose window holds padding alone, and later layers pass it on.
        model.set_attn_implementation("eager")
    encoder.eval()
    with torch.no_grad(), warnings.catch_warnings():
        # Tracing warns of every Python branch in transformers; the check of fidelity finds those that matter.
        warnings.simplefilter("ignore")
        try:
            # Two of one and three of the other: an axis of length one could be taken for a constant.
            graph = _graph(encoder, openvino.convert_model(encoder, example_input=_example(encoder, 2, 3)))
            openvino.compile_model(graph, "CPU")([each.numpy() for each in _example(encoder, 1, 5).values()])
        except Exception as error:
            try:
                # It prints and logs the whole program with an error.
                logging.disable(logging.CRITICAL)
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    graph = _graph(encoder, openvino.convert_model(_program(encoder)))
            except Exception:
                raise Unfaithful(f"OpenVINO cannot convert it: {reason(error)}") from error
            finally:
                logging.disable(logging.NOTSET)
    return graph


def _example(encoder: Encoder | TextTower, rows: int, length: int) -> dict[str, torch.Tensor]:
    return {name: torch.ones(rows, length, dtype=torch.int64) for name in encoder.input_names}


def _program(encoder: Encoder | TextTower) -> torch.export.ExportedProgram:
    any_size = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    shapes = dict.fromkeys(encoder.input_names, any_size)
    return torch.export.export(encoder, (), _example(encoder, 2, 11), dynamic_shapes=shapes, strict=False)


def _graph(encoder: Encoder | TextTower, graph: openvino.Model) -> openvino.Model:
    """Name the inputs and outputs, and free their sizes."""
    names = (*encoder.input_names, *encoder.output_names)
    for port, name in zip((*graph.inputs, *graph.outputs), names, strict=True):
        port.get_tensor().set_names({name})
    graph.reshape({port: openvino.PartialShape([-1, -1]) for port in graph.inputs})
    return graph
