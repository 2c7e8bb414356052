"""Forms of checkpoints, found in their files before a model is loaded: one line on each that no task serves.

config.json, names of files -> check_form -> WeightsUnavailable with what the checkpoint is, and the way out
router_config.json          -> read_router -> the folders of a model for documents and of each word's weight in a query
                            -> flatten     -> the documents' model as a checkpoint, those weights in query_weights.npy
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch
import transformers

from deploy.archives.sources import WeightsUnavailable
from deploy.archives.tasks import BUILT_IN
from deploy.models import ModelEntry
from handlers.errors import InvalidConfig
from handlers.text.sentence_files import read_json
from handlers.text.token_modules import QUERY_WEIGHTS
from torchserve_client.payloads import Json

ROUTER = "router_config.json"
STATIC, WEIGHT = "SparseStaticEmbedding", "weight"
QUANTISATIONS = ("quantization_config", "compression_config")  # keys of config.json
INDEX, CONFIG = "model.safetensors.index.json", "tokenizer_config.json"
# Weights of other programs, by their names.
AGAIN = "load them with transformers 4 and from_{}=True, and write them with save_pretrained"
OTHERWISE = "name the original checkpoint, with model.safetensors, or the file itself with task: tensors"
FOREIGN = {
    "*.h5": f"weights of TensorFlow; {AGAIN.format('tf')}",
    "*.msgpack": f"weights of Flax; {AGAIN.format('flax')}",
    "*.ckpt.index": "weights of TensorFlow 1; name the same model as transformers publishes it, with model.safetensors",
    "rust_model.ot": f"weights of Rust; {OTHERWISE}",
    "*.tflite": f"a graph of TensorFlow Lite; {OTHERWISE}",
    "*openvino*.xml": f"a graph for OpenVINO; {OTHERWISE}",
    "openvino/*.xml": f"a graph for OpenVINO; {OTHERWISE}",
    "*.gguf": "quantised weights for llama.cpp; name the original checkpoint, in fp32, bf16 or fp16",
    "*.onnx": f"a graph in ONNX; {OTHERWISE}",
    "onnx/*.onnx": f"a graph in ONNX; {OTHERWISE}",
}
# Weights of PyTorch, beside which `training_args.bin` and openvino_model.bin have others.
PICKLED = ("pytorch_model*.bin", "model*.bin")
# Kinds of models that transformers has and no task serves, by `model_type`.
UNSERVED: Mapping[tuple[str, ...], str] = {
    ("tapas",): "it answers questions about tables, which no task accepts; write a task for it"
}


def check_form(model: ModelEntry, source: Path, *, with_code: bool, with_weights: bool) -> None:
    """Raise WeightsUnavailable for a checkpoint whose form this project does not serve."""
    if model.handler in BUILT_IN:
        config = read_json(source / "config.json") if with_weights else {}
        for problem in (
            *_find_problems(model.handler, config, source, with_code=with_code),
            *(_check_files(source) if with_weights else ()),
        ):
            raise WeightsUnavailable(f"{model.name}: {source}: {problem}")


def _find_problems(task: str, config: Json, source: Path, *, with_code: bool) -> Iterator[str]:
    for part in (config, *(each for each in config.values() if isinstance(each, dict))):
        for key in QUANTISATIONS:
            if isinstance(part.get(key), dict):
                yield (
                    f"its weights are quantised ({_name_method(part[key])}); name the original checkpoint, in fp32, "
                    "bf16 or fp16"
                )
    names = config.get("id2label")
    if names is not None and not (isinstance(names, dict) and all(map(str.isdecimal, names))):
        yield 'config.json: id2label needs names by number: {"0": "NAME", "1": "NAME", ...}'
    kind, codes = config.get("model_type"), {**_find_code(config), **_find_code(read_json(source / CONFIG))}
    for kinds, why in {**UNSERVED, **BUILT_IN[task].unserved}.items():
        if kind in kinds:
            yield f"{kind}: {why}"
    yield from _check_code(str(kind), codes, source, with_code=with_code)
    if config and kind is None and not codes and "architecture" not in config:  # as timm names it
        yield "config.json has no model_type; add that of the model's architecture, such as bert"
    if kind is not None and not codes and kind not in transformers.CONFIG_MAPPING:
        yield (
            f"config.json: transformers {transformers.__version__} does not have model_type {kind}; if its author "
            "has code for it, add its files and auto_map, and set trust_remote_code, or else write a task"
        )


def _name_method(settings: Mapping[str, object]) -> str:
    bits = settings.get("bits") or settings.get("nbits") or settings.get("weights")
    known = "bitsandbytes" if "load_in_8bit" in settings or "load_in_4bit" in settings else "unknown method"
    bits = 4 if settings.get("load_in_4bit") else 8 if settings.get("load_in_8bit") else bits
    name = str(settings.get("quant_method") or settings.get("quantization_type") or known)
    return f"{name}, {bits} bits" if isinstance(bits, int) else name


def _find_code(config: object) -> dict[str, str]:
    """Return the classes in Python that a configuration names, by the class of transformers that loads them."""
    mapped = config.get("auto_map") if isinstance(config, dict) else None
    mapped = mapped if isinstance(mapped, dict) else {"AutoTokenizer": mapped} if mapped else {}
    several = {name: each if isinstance(each, list | tuple) else [each] for name, each in mapped.items()}
    return {name: str(next((one for one in each if one), "")) for name, each in several.items()}


def _check_code(kind: str, codes: Mapping[str, str], source: Path, *, with_code: bool) -> Iterator[str]:
    for name, place in codes.items():
        repository, _, inner = place.rpartition("--")
        if not with_code:
            known = kind in transformers.CONFIG_MAPPING
            instead = f"; or remove auto_map, if transformers' own {kind} answers as well" if known else ""
            yield (
                f"auto_map: its author's code ({place}) is the model's {name}; set trust_remote_code: true in "
                f"model-config.yaml, if the task has that setting and you trust it{instead}"
            )
        elif repository:
            yield (
                f"auto_map: {name} is code of another repository, {repository}; copy its .py files into the folder, "
                f"and write {inner} instead of {place}"
            )
        elif not (source / f"{inner.partition('.')[0]}.py").is_file():
            yield f"auto_map: no {inner.partition('.')[0]}.py, the code of {name}, in the folder; copy it there"


def _check_files(source: Path) -> Iterator[str]:
    shards = read_json(source / INDEX).get("weight_map") or {}
    if missing := sorted({str(name) for name in shards.values() if not (source / str(name)).is_file()}):
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield f"{missing[0]}{others}, which {INDEX} names, is missing; copy the whole folder again"
    if not any(any(source.glob(pattern)) for pattern in ("*.safetensors", *PICKLED)):
        for pattern, words in FOREIGN.items():
            if found := sorted(source.glob(pattern)):
                yield f"{found[0].relative_to(source)} has {words}"


class Router(NamedTuple):
    query: str  # the folder of the queries' weights
    documents: list[tuple[str, str]]  # the folder and the type of each module for documents


def read_router(source: Path) -> Router | None:
    """Read a Router; None if a folder has another layout, InvalidConfig if it routes otherwise."""
    if not (source / ROUTER).is_file():
        return None
    content = json.loads((source / ROUTER).read_text(encoding="utf-8"))
    types, routes, usual = content["types"], content["structure"], (content.get("parameters") or {})
    query = routes.get("query") or [""]
    is_static = len(query) == 1 and types.get(query[0], "").endswith(f".{STATIC}")
    if {*routes} != {"query", "document"} or not is_static or usual.get("default_route") not in (None, "document"):
        raise InvalidConfig(
            f"{ROUTER}: only the routes query, of one {STATIC}, and document, the default, are supported; write a task "
            "for this model"
        )
    return Router(query[0], [(path, types[path]) for path in routes["document"]])


def flatten(folder: Path, router: Router) -> None:
    """Replace the layout of a Router, whose documents' transformer is in the folder itself already."""
    weights = safetensors.torch.load_file(folder / router.query / "model.safetensors")[WEIGHT]
    np.save(folder / QUERY_WEIGHTS, weights.float().numpy())
    shutil.rmtree(folder / router.query)
    (folder / ROUTER).unlink()
    (folder / "modules.json").unlink()
    paths = ["", *(path for path, _ in router.documents[1:])]
    kinds = [kind for _, kind in router.documents]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": kind}
        for index, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
