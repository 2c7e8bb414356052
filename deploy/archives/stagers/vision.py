"""Stages image classification: torchvision's state dict or transformers' checkpoint -> the files of an archive.

Other tasks on images export and write their files with the functions below.
"""

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

from deploy.archives.hub import open_checkpoint, pack
from deploy.archives.labels import FORM, LABELS, read_label_file
from deploy.archives.preprocessing import follow_processor, read_transform
from deploy.archives.sources import Source, WeightsUnavailable
from deploy.archives.weights import count_classes, load_weights
from deploy.models import TENSORS, Engine, ModelEntry
from deploy.progress import printable
from handlers.archive_files import GRAPH
from handlers.checkpoints import check_labels
from handlers.config import parse
from handlers.errors import InvalidConfig, Unfaithful, reason
from handlers.vision.config import ImageClassificationConfig
from handlers.vision.pixel_classifier import build_torchvision, load_classifier, network_options
from handlers.vision.preprocessing import Preprocessing

MOST_SHOWN = 4  # the most changed labels that a message names


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write labels, preprocessing, the graph except for `torch`, and the weights except for `openvino`."""
    config = parse(ImageClassificationConfig, model.config().get("handler"))
    _check_source(model, config, origin)
    if config.arch is not None:
        seen = read_transform(model, config, origin)
        known = network_options(config.arch, seen)
        state = load_weights(model, config.arch, origin, **known)
        labels = read_labels(model, config.arch, count_classes(model, config.arch, state, **known))
        classifier = build_torchvision(state, config.arch, len(labels), seen)
        write_state(state, engine, folder)
    else:
        with open_checkpoint(model, origin) as source:
            _check_library(model, source)
            labels = make_unique(model, [*read_checkpoint_labels(source).values()])
            seen = follow_processor(source)
            classifier = load_classifier(source, seen)
            pack(source, folder, with_weights=engine != "openvino")
    write_network(classifier, seen, ("logits",), dict(enumerate(labels)), engine=engine, folder=folder)


def _check_source(model: ModelEntry, config: ImageClassificationConfig, origin: Source) -> None:
    config_path = Path(origin.location).parent / "config.json"
    if config.arch is None:
        if (origin.kind == "file" and not config_path.is_file()) or origin.kind in ("torchvision", "random"):
            raise InvalidConfig(
                f"{model.name}: arch: required for weights of torchvision: the name of the network, such as resnet50"
            )
        return
    way_out = "remove arch for a checkpoint of transformers, whose config.json names the network"
    if config.arch not in torchvision.models.list_models(torchvision.models):
        raise InvalidConfig(f"{model.name}: arch: {config.arch} is not a classifier of torchvision.models; {way_out}")
    if origin.kind in ("folder", "hub") or (origin.kind == "file" and _names_network(config_path)):
        raise InvalidConfig(
            f"{model.name}: arch: only for a state dict of torchvision, and not for {origin.location}; {way_out}"
        )


def _names_network(path: Path) -> bool:
    """Return whether a file is the config.json of a checkpoint; a training program may write another one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "model_type" in content


def _check_library(model: ModelEntry, source: Path) -> None:
    """Raise InvalidConfig for a model of timm, for which transformers has only a wrapper."""
    content = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if content.get("model_type") == "timm_wrapper" or "pretrained_cfg" in content:
        raise InvalidConfig(
            f"{model.name}: a model of timm, which is not installed here; export it with torch.onnx.export, and serve "
            f"the file with task: {TENSORS}"
        )


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
