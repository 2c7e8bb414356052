"""The result of an old archive: an entry of a model list, settings, files; or the reason why not, in one line.

OldArchive -> find_move -> Move, by its handler: TorchServe's vision handlers, the transformers example, custom ones
"""

import ast
import importlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import ModuleType

import yaml

from deploy.archives.labels import LABELS
from deploy.archives.migrate.custom import draft_task, find_problems
from deploy.archives.migrate.weights import find_arch, read_weights
from deploy.archives.old_archives import OldArchive
from deploy.archives.state_dicts import StateDict
from deploy.archives.tasks import BUILT_IN, import_quietly
from deploy.models import STOCK, ModelEntry
from handlers.config import FRONTEND_NAMES
from handlers.errors import InvalidConfig
from handlers.vision.config import IMAGENET_MEAN, IMAGENET_STD
from torchserve_client.payloads import Json

# Settings whose answers equal those of TorchServe's handlers, which compute and decode in full.
EXACT = {"precision": "fp32", "scaled_decode": False}
STATISTICS = {"mean": [*IMAGENET_MEAN], "std": [*IMAGENET_STD]}
# The tasks that replace handlers of TorchServe, and modes of its transformers example.
REPLACED = {task.replaces[0]: name for name, task in BUILT_IN.items() if task.replaces[0]}
MODES = {task.mode_before: name for name, task in BUILT_IN.items() if task.mode_before}
NO_TEXT = (
    "handler text_classifier: its vocabulary is a pickle of torchtext, which has ended, and it reads only the "
    "first request of a batch; train a text classifier of transformers"
)
CHECKPOINT = "checkpoint"
WAY_OUT = "add --stock to run it as it is"


@dataclass(slots=True)
class Move:
    handler: str  # a task, or the draft's file
    weights: str = ""  # a path from the model's folder; empty for none
    settings: Json = field(default_factory=dict)  # `handler:` of model-config.yaml
    files: dict[str, Path | str] = field(default_factory=dict)  # a file of the old archive, or text, by path
    state: StateDict | None = None  # the weights, written to model.pt
    is_whole: bool = True  # it can be built before its owner fills anything in
    draft: str = ""  # the source of a task that its owner completes; empty for a built-in task
    sources: list[tuple[str, str, str]] = field(default_factory=list)  # setting, value, source of the value
    notes: list[str] = field(default_factory=list)  # differences, problems, values to fill in

    def add(self, values: Json, source: str) -> None:
        self.settings |= values
        self.sources += [(name, str(value), source) for name, value in values.items()]


def find_move(name: str, archive: OldArchive, *, is_stock: bool) -> Move:
    """Decide which task serves an archive; InvalidConfig if it cannot be moved."""
    handler = str(archive.manifest["handler"])
    own, config_file = _own_handler(archive), str(archive.manifest.get("configFile"))
    source = None if own is None else archive.read_text(own.name)
    if is_stock:
        move = Move(STOCK, "old")
        move.files = {f"old/{each}": archive.folder / each for each in [*archive.files(), "MAR-INF/MANIFEST.json"]}
    elif handler in REPLACED and source is None:
        move = _move_vision(name, archive, REPLACED[handler])
    elif handler == "text_classifier" and source is None:
        raise InvalidConfig(NO_TEXT)
    elif (archive.folder / "setup_config.json").is_file() and source and "AutoTokenizer" in source:
        move = _move_transformers(archive)
    elif source is not None:
        file = "task_" + re.sub(r"\W", "_", name) + ".py"
        move = Move(file, draft=draft_task(archive, source), is_whole=False)
        move.files = {
            each: archive.folder / each
            for each in archive.files()
            if (archive.folder / each) != own and each not in (config_file, "model-config.yaml")
        }
        move.notes = [f"complete {file}: BATCHING marks each decision; a build runs the old code in it"]
    else:
        raise InvalidConfig(f"handler {handler}: not a handler that this project has; {WAY_OUT}")
    move.sources += [("weights", move.weights, str(archive.manifest.get("serializedFile", "")))] if move.weights else []
    config = _frontend_settings(move, archive)
    if source is not None and (move.handler == STOCK or move.draft):
        problems, is_single = find_problems(archive, source)
        move.notes += problems
        config |= {"batchSize": 1} if is_single and move.handler == STOCK else {}
    if config:
        move.files["model-config.yaml"] = yaml.safe_dump(config)
    return move


def _own_handler(archive: OldArchive) -> Path | None:
    """Return the file of the archive's own handler; None for one of TorchServe's."""
    name = PurePosixPath(str(archive.manifest["handler"]).partition(":")[0]).name
    path = archive.folder / f"{name.removesuffix('.py')}.py"
    return path if path.is_file() else None


def _frontend_settings(move: Move, archive: OldArchive) -> Json:
    """Keep TorchServe's own settings; the sizes of batches only of a handler that stays as it was."""
    known = {key: value for key, value in archive.config.items() if key in FRONTEND_NAMES}
    kept = {key: value for key, value in known.items() if isinstance(value, str | int | float)}
    left = () if move.handler == STOCK else ("batchSize", "maxBatchDelay")
    move.notes += [f"{key} {kept.pop(key)} is left out: the build sets its own" for key in left if key in kept]
    move.sources += [(key, str(value), "model-config.yaml") for key, value in kept.items()]
    return kept


def _network(name: str, archive: OldArchive, package: ModuleType) -> tuple[str, StateDict]:
    """Read the weights and name their network; its own code may only be an `__init__`."""
    weights, code = archive.path("serializedFile"), archive.path("modelFile")
    if weights is None or weights.suffix not in (".pt", ".pth", ".bin", ".ckpt", ".safetensors"):
        raise InvalidConfig(f"weights {archive.manifest.get('serializedFile')}: expected a .pt or .pth; {WAY_OUT}")
    hint = archive.read_text(code.name) if code else ""
    try:
        methods = [node for node in ast.walk(ast.parse(hint)) if isinstance(node, ast.FunctionDef)]
    except (SyntaxError, ValueError) as error:
        raise InvalidConfig(f"{code and code.name}: not valid Python: {error}") from None
    if own := [
        f"{node.name} (line {node.lineno})" for node in methods if node.name not in ("__init__", "load_state_dict")
    ]:
        raise InvalidConfig(
            f"model file {code and code.name} defines {', '.join(own)}, so torchvision's network may answer otherwise; "
            f"{WAY_OUT}, or export the model to ONNX for task: tensors"
        )
    state = read_weights(ModelEntry(name, "", "", archive.folder), weights)
    arch = find_arch(state, package, f"{hint} {weights.name} {name}")
    if arch is None:
        raise InvalidConfig(
            f"weights {weights.name}: not those of a network in {package.__name__}; {WAY_OUT}, or export the model "
            "to ONNX for task: tensors"
        )
    return arch, state


def _move_vision(name: str, archive: OldArchive, handler: str) -> Move:
    task = BUILT_IN[handler]
    old, package = task.replaces
    arch, state = _network(name, archive, importlib.import_module(package))
    classes = import_quietly(task.builder).count_classes(arch, state, WAY_OUT)
    move = Move(handler, "model.pt", state=state)
    move.add({"arch": arch}, "names and shapes of the weights")
    move.add({**(STATISTICS if "crop_size" in task.as_before else {}), **task.as_before}, f"TorchServe's {old}")
    move.add(EXACT, "equal answers; leave it out for speed")
    if (archive.folder / LABELS).is_file():
        move.files[LABELS] = archive.folder / LABELS
        move.sources.append(("labels", LABELS, LABELS))
    else:
        numbers = map(str, range(classes))
        move.files[LABELS] = json.dumps({number: number for number in numbers})
        move.notes.append(f"fill in {LABELS}: the archive has no names, so classes are numbers as before")
    return move


def _move_transformers(archive: OldArchive) -> Move:
    """Move the example Huggingface_Transformers of TorchServe's repository, by its setup_config.json."""
    setup = archive.read_json("setup_config.json")
    mode = setup.get("mode")
    if mode not in MODES:
        raise InvalidConfig(f"setup_config.json: mode {mode}: expected one of {', '.join(MODES)}; {WAY_OUT}")
    if setup.get("save_mode") != "pretrained" or not (archive.folder / "config.json").is_file():
        raise InvalidConfig(
            f"setup_config.json: save_mode {setup.get('save_mode')}: TorchScript has no config.json; build the archive "
            f"with save_mode pretrained, or {WAY_OUT}"
        )
    others = {LABELS, "setup_config.json", str(archive.manifest.get("configFile"))}
    names = [each for each in archive.files() if not each.endswith(".py") and each not in others]
    weights = archive.path("serializedFile")
    is_pickle = weights is not None and not any(each.endswith(".safetensors") for each in names)
    # A pickle is read only if it is named, and then only its tensors.
    move = Move(MODES[mode], f"{CHECKPOINT}/{weights.name}" if weights and is_pickle else CHECKPOINT)
    move.files = {f"{CHECKPOINT}/{each}": archive.folder / each for each in names}
    move.add({"max_length": int(setup.get("max_length", 512)), "truncation": True}, "setup_config.json")
    move.add({"precision": "fp32"}, "equal answers; leave it out for speed")
    config = archive.read_json("config.json")
    if labels := _labels(archive.read_json(LABELS)):
        config |= {"id2label": dict(enumerate(labels)), "label2id": {label: at for at, label in enumerate(labels)}}
        move.files[f"{CHECKPOINT}/config.json"] = json.dumps(config, indent=2)
        move.sources.append(("id2label", ", ".join(labels), LABELS))
    if not any(each.startswith(("vocab", "tokenizer", "spiece", "sentencepiece")) for each in names):
        move.is_whole = False
        move.notes.append(f"fill in the tokenizer's files: copy those of {setup.get('model_name')} to {CHECKPOINT}/")
    elif "do_lower_case" in setup and "tokenizer.json" not in names:
        known = archive.read_json("tokenizer_config.json") | {"do_lower_case": bool(setup["do_lower_case"])}
        move.files[f"{CHECKPOINT}/tokenizer_config.json"] = json.dumps(known)
        move.sources.append(("do_lower_case", str(setup["do_lower_case"]), "setup_config.json"))
    if own := BUILT_IN[MODES[mode]].as_before:
        move.add(dict(own), "answers as the example's")
    move.notes.append(
        f"answers are objects with scores, not text: see docs/reference/tasks/{move.handler.replace('_', '-')}.md"
    )
    return move


def _labels(names: Json) -> list[str]:
    """Read the example's labels: {"0": NAME}, or {"label_list": "[O, B-PER]"}."""
    listed = names.get("label_list")
    if isinstance(listed, str):
        return [each.strip() for each in listed.strip("][").split(",")]
    return [str(names.get(str(index), index)) for index in range(len(names))]
