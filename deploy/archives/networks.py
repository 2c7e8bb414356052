"""The files of a network on images: its labels, its preprocessing, and its graph."""

import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import openvino
import torch
import torchvision
import transformers
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

from deploy.archives.labels import FORM, LABELS, read_label_file
from deploy.archives.sources import WeightsUnavailable
from deploy.models import Engine, ModelEntry
from deploy.progress import printable
from handlers.archive_files import GRAPH
from handlers.checkpoints import check_labels
from handlers.errors import InvalidConfig, Unfaithful, reason
from handlers.vision.preprocessing import Preprocessing

MOST_SHOWN = 4  # the most changed labels that a message names


def read_checkpoint_labels(source: Path) -> dict[int, str]:
    return check_labels(transformers.AutoConfig.from_pretrained(source, local_files_only=True).id2label)


def write_state(state: Mapping[str, torch.Tensor], engine: Engine, folder: Path) -> None:
    if engine != "openvino":
        torch.save(state, folder / "model.pt")


def write_network(
    module: torch.nn.Module,
    seen: Preprocessing,
    outputs: Sequence[str],
    labels: Mapping[int, str],
    *,
    engine: Engine,
    folder: Path,
) -> None:
    """Write the preprocessing and the labels of a network, and its graph except for `torch`; see `export`."""
    seen.write(folder)
    (folder / LABELS).write_text(json.dumps(labels, ensure_ascii=False), encoding="utf-8")
    if engine != "torch":
        openvino.save_model(export(module, seen, outputs), folder / GRAPH, compress_to_fp16=False)


def export(module: torch.nn.Module, seen: Preprocessing, outputs: Sequence[str]) -> openvino.Model:
    """Export a module as a graph: pixels (B, H, W, 3) -> outputs; any B, and any size if `seen` has none."""
    width, height = seen.size or (seen.least_side, seen.least_side)
    # With zeros all queries of a detector would be alike, and the order of the first ones undefined.
    chance = torch.Generator().manual_seed(0)
    example = torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8, generator=chance)
    example = example if seen.is_antialiased else example.float()
    sizes = [height, width] if seen.size else [-1, -1]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module(example)  # LeViT fills its cache in the first run
            # torch's own check would trace it again; the check of fidelity compares its answers.
            traced = TorchScriptPythonDecoder(module, example_input=example, trace_kwargs={"check_trace": False})
            graph = openvino.convert_model(traced, input=[-1, *sizes, 3])
        except Exception as error:
            raise Unfaithful(f"OpenVINO cannot convert it: {reason(error)}") from error
    graph.inputs[0].get_tensor().set_names({"pixels"})
    for port, name in zip(graph.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    return graph


def read_labels(model: ModelEntry, arch: str, class_count: int, *, are_unique: bool = True) -> list[str]:
    """Read the names of the classes: the model's own file, or torchvision's if their number fits."""
    own, ids = model.folder / LABELS, list[str]()
    if own.is_file():
        labels, ids = read_label_file(model, own)
    else:
        labels = torchvision.models.get_model_weights(arch).DEFAULT.meta["categories"]
    if len(labels) != class_count:
        there = f"there are {len(labels)} names" if own.is_file() else f"torchvision's own weights have {len(labels)}"
        raise WeightsUnavailable(
            f"{model.name}: the weights have {class_count} classes; name them in {os.path.relpath(own)}, from 0 to "
            f"{class_count - 1}: {FORM}; {there}"
        )
    return make_unique(model, labels, ids) if are_unique else labels


def make_unique(model: ModelEntry, labels: list[str], ids: Sequence[str] = ()) -> list[str]:
    """Add the WordNet id, or else the number, to names of several classes, as ImageNet's crane; print the change."""
    counts = Counter(labels)
    shared = [label for label, count in counts.items() if count > 1]
    if not shared:
        return labels
    numbers = [*map(str, range(len(labels)))]
    # If their ids are equal, too, they do not distinguish the classes.
    has_ids = len({*zip(labels, ids, strict=False)}) == len(labels)
    marks = ids if has_ids else numbers
    unique = [f"{label} ({mark})" if counts[label] > 1 else label for label, mark in zip(labels, marks, strict=True)]
    if len({*unique}) < len(labels):
        raise InvalidConfig(f"{model.name}: several classes have the name {shared[0]}; give each its own")
    given = [new for new, old in zip(unique, labels, strict=True) if new != old]
    kind = "WordNet ids" if has_ids else "numbers"
    more = ", ..." if len(given) > MOST_SHOWN else ""
    print(printable(f"{model.name}: several classes share a name; {kind} added: {', '.join(given[:MOST_SHOWN])}{more}"))
    return unique
