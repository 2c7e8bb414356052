"""Stages what an archive of image classification holds, made from a state dict of torchvision or a checkpoint of
transformers; and exports for all tasks on images."""

import json
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import openvino
import torch
import torchvision
import transformers

from deploy.build.hub import open_checkpoint, pack
from deploy.build.preprocessing import of_arch, of_processor
from deploy.build.sources import Source, WeightsUnavailable
from deploy.build.weights import count_classes, load_weights
from deploy.models import TENSORS, Engine, ModelEntry
from handlers.archive_files import GRAPH
from handlers.checkpoints import check_labels
from handlers.config import parse
from handlers.errors import InvalidConfig, Unfaithful, reason
from handlers.vision.config import ImageClassificationConfig
from handlers.vision.pixel_classifier import build_torchvision, load_classifier, network_options
from handlers.vision.preprocessing import Preprocessing


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write index_to_name.json, preprocessing.json, the graph but for `torch`, and the weights but for `openvino`.

    Raises:
        WeightsUnavailable: the weights, or labels for them, cannot be had.
        InvalidConfig: the model's configuration is wrong.
    """
    config = parse(ImageClassificationConfig, model.config().get("handler"))
    _check_source(model, config, origin)
    if config.arch is not None:
        seen = of_arch(model, config, origin)
        known = network_options(config.arch, seen)
        state = load_weights(model, config.arch, origin, **known)
        labels = read_labels(model, config.arch, count_classes(model, config.arch, state, **known))
        classifier = build_torchvision(state, config.arch, len(labels), seen)
        if engine != "openvino":
            torch.save(state, folder / "model.pt")
    else:
        with open_checkpoint(model, origin) as source:
            labels = _labels_of_checkpoint(model, source)
            seen = of_processor(source)
            classifier = load_classifier(source, seen)
            pack(source, folder, with_weights=engine != "openvino")
    seen.write(folder)
    (folder / "index_to_name.json").write_text(json.dumps(dict(enumerate(labels)), ensure_ascii=False))
    if engine != "torch":
        openvino.save_model(export(classifier, seen, ("logits",)), folder / GRAPH, compress_to_fp16=False)


def _check_source(model: ModelEntry, config: ImageClassificationConfig, origin: Source) -> None:
    """Raise InvalidConfig if the weights have another form than the settings say."""
    if config.arch is None:
        is_bare = origin.kind == "file" and not (Path(origin.location).parent / "config.json").is_file()
        if is_bare or origin.kind in ("torchvision", "random"):
            raise InvalidConfig(f"{model.name}: arch: required for weights of torchvision, the name of the network")
        return
    if config.arch not in torchvision.models.list_models(torchvision.models):
        raise InvalidConfig(f"{model.name}: arch: {config.arch} is no classifier of torchvision.models")
    if origin.kind in ("folder", "hub"):
        raise InvalidConfig(
            f"{model.name}: arch: only for a state dict of torchvision; leave it out for {origin.location}"
        )


def _labels_of_checkpoint(model: ModelEntry, source: Path) -> list[str]:
    """Read the labels; InvalidConfig if two classes have the same name, or transformers has only a wrapper for it."""
    said = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if said.get("model_type") == "timm_wrapper" or "pretrained_cfg" in said:
        raise InvalidConfig(
            f"{model.name}: a model of timm, which is not installed here; export it with torch.onnx.export, and serve "
            f"the file with handler: {TENSORS}"
        )
    labels = check_labels(transformers.AutoConfig.from_pretrained(source, local_files_only=True).id2label)
    return _checked_names(model, [*labels.values()])


def export(module: torch.nn.Module, seen: Preprocessing, outputs: Sequence[str]) -> openvino.Model:
    """Export a module that sees images as a graph: pixels (B, H, W, 3) uint8 -> outputs; any B.

    Args:
        module: takes the pixels.
        seen: what it sees; images of any size, if that says none.
        outputs: names of what it returns.

    Raises:
        Unfaithful: OpenVINO cannot convert it.
    """
    width, height = seen.size or (seen.least_side, seen.least_side)
    # Zeros would leave every query of a detector alike, and the order of the first ones open.
    chance = torch.Generator().manual_seed(0)
    example = torch.randint(0, 256, (2, height, width, 3), dtype=torch.uint8, generator=chance)
    sizes = [height, width] if seen.size else [-1, -1]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # LeViT makes what it keeps for later runs in its first.
            module(example)
            graph = openvino.convert_model(module, example_input=example, input=[-1, *sizes, 3])
        except Exception as error:
            raise Unfaithful(f"OpenVINO cannot convert it: {reason(error)}") from error
    graph.inputs[0].get_tensor().set_names({"pixels"})
    for port, name in zip(graph.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    return graph


def read_labels(model: ModelEntry, arch: str, class_count: int, *, are_unique: bool = True) -> list[str]:
    """Name the classes: by the model's own file, or as torchvision's weights do where the count fits."""
    own = model.folder / "index_to_name.json"
    if own.is_file():
        names = json.loads(own.read_text(encoding="utf-8"))
        # TorchServe's example pairs names with WordNet's ids, ["n01440764", "tench"]; two of the names are not unique.
        pairs = [name if isinstance(name, list) else [name] for name in map(names.get, map(str, range(len(names))))]
        counts = Counter(pair[-1] for pair in pairs)
        labels = [f"{pair[-1]} ({pair[0]})" if len(pair) > 1 < counts[pair[-1]] else pair[-1] for pair in pairs]
    else:
        labels = torchvision.models.get_model_weights(arch).DEFAULT.meta["categories"]
    if len(labels) != class_count or None in labels:
        raise WeightsUnavailable(
            f"{model.name}: the weights have {class_count} classes; name them in {os.path.relpath(own)}, from 0 to "
            f"{class_count - 1}; there are {len(labels)} names"
        )
    return _checked_names(model, labels) if are_unique else labels


def _checked_names(model: ModelEntry, labels: list[str]) -> list[str]:
    if len(set(labels)) != len(labels):
        raise WeightsUnavailable(f"{model.name}: two classes have the same name; an answer could not hold both")
    return labels
