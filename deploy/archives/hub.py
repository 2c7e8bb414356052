"""A Hugging Face checkpoint as a folder: a local one, one inside a package, or one from the hub.

Source -> open_checkpoint -> a folder with the files that serving reads: configuration, tokenizer, model.safetensors
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import safetensors
import safetensors.torch
import torch
import transformers

from deploy.archives.forms import INDEX, check_form, flatten, read_router
from deploy.archives.pickles import read_tensors
from deploy.archives.sources import Source, WeightsUnavailable, list_served_files, list_unserved_files
from deploy.archives.state_dicts import read_state
from deploy.models import ModelEntry
from deploy.progress import printable, step
from handlers.archive_files import CHECKPOINT
from handlers.errors import reason
from torchserve_client.files import copy_folder

MODULES, WEIGHTS = "modules.json", "model.safetensors"
LISTS = (MODULES, "vocab")  # beginnings of the names of files that may contain a list
# Settings of config.json that may name a kernel to download.
KERNELS = ("attn_implementation", "experts_implementation")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@contextmanager
def open_checkpoint(
    model: ModelEntry, origin: Source, *, with_code: bool = False, with_weights: bool = True, lists_others: bool = True
) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "checkpoint"
        if origin.kind not in ("hub", "folder", "file"):
            raise WeightsUnavailable(
                f"{model.name}: no {origin.kind} weights for {model.handler}; use --weights FOLDER or a hub id"
            )
        named = Path(origin.location)
        source = _download(model, origin, with_weights=with_weights) if origin.kind == "hub" else named
        if origin.kind == "file":
            source = named.parent
        inner = _find_transformer(source)
        _check_folder(model, source / inner)
        served = list_served_files(source, with_code=with_code, is_whole=origin.kind != "file")
        _link(source, served, folder, inner)
        _check_files(model, source, served)
        check_form(model, source / inner, with_code=with_code, with_weights=with_weights)
        _drop_kernels(folder)
        if router := read_router(source):
            flatten(folder, router)
        for path in folder.glob("*_linear.pt"):
            _convert_head(model, path)
        for path in folder.glob("*/pytorch_model.bin"):
            if not path.with_name("model.safetensors").exists():
                _convert(model, path, path.parent)
            path.unlink()
        if origin.kind == "file" or not with_weights:
            for path in folder.glob("*.safetensors*"):
                path.unlink()
        if origin.kind == "file" and with_weights:
            _convert(model, named, folder)
        if with_weights and not any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
            if others := sorted(path.name for path in folder.glob("*.safetensors")):
                raise WeightsUnavailable(
                    f"{model.name}: {origin.location}: {others[0]} is not read without {WEIGHTS} or {INDEX}; copy the "
                    "whole folder again, or name the file itself"
                )
            raise WeightsUnavailable(
                f"{model.name}: {origin.location} has no {WEIGHTS}; a pickle is read only if --weights names "
                "the file itself; load several ones in Python and write them with save_pretrained"
            )
        yield folder
        if lists_others and (others := list_unserved_files(source, [*served, named])):
            print(printable(f"{model.name}: left out of the archive: {', '.join(others)}"), file=sys.stderr)


def _check_folder(model: ModelEntry, source: Path) -> None:
    if (source / "adapter_config.json").is_file():
        raise WeightsUnavailable(
            f"{model.name}: {source} contains an adapter (adapter_config.json), not a whole model; merge it with "
            "peft's merge_and_unload() and save the result with save_pretrained"
        )
    if not (source / "config.json").is_file():
        raise WeightsUnavailable(f"{model.name}: {source} contains no config.json; name the folder that has it")


def _check_files(model: ModelEntry, source: Path, files: Iterable[Path]) -> None:
    """Raise WeightsUnavailable with the name of a file that is cut short or otherwise broken."""
    for path in files:
        name, problem = path.relative_to(source), ""
        try:
            if path.suffix == ".json":
                content = json.loads(path.read_text(encoding="utf-8"))
                if not isinstance(content, dict) and not path.name.startswith(LISTS):
                    problem = "not a JSON object"
            elif path.suffix == ".safetensors":
                # It reads the header, and compares the file's size with it.
                with safetensors.safe_open(path, "pt"):
                    pass
        except (ValueError, RecursionError):
            problem = "not valid JSON"
        except safetensors.SafetensorError as error:
            problem = f"not a whole file of safetensors ({error})"
        if problem:
            raise WeightsUnavailable(f"{model.name}: {source}: {name}: {problem}; save or copy it again")


def _drop_kernels(folder: Path) -> None:
    """Drop the choice of an attention, which may be a kernel to download and run, from each config.json."""
    for path in folder.rglob("config.json"):
        text = path.read_text(encoding="utf-8")
        kept = json.loads(text, object_hook=lambda old: {key: old[key] for key in old if not key.endswith(KERNELS)})
        if kept != json.loads(text):
            path.unlink()
            path.write_text(json.dumps(kept, indent=2), encoding="utf-8")


def pack(source: Path, folder: Path, *, with_weights: bool) -> None:
    copy_folder(source, folder / CHECKPOINT, *(() if with_weights else ("model*.safetensors*",)))


def _link(source: Path, files: Iterable[Path], folder: Path, inner: str) -> None:
    """Link files into a folder; those of the transformer's own folder are in the folder itself."""
    for path in files:
        name = path.relative_to(source)
        link = folder / (name.relative_to(inner) if inner and name.is_relative_to(inner) else name)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())
    if inner and not (source / "router_config.json").is_file():
        first, *others = json.loads((source / MODULES).read_text(encoding="utf-8"))
        (folder / MODULES).unlink()
        (folder / MODULES).write_text(json.dumps([{**first, "path": ""}, *others]), encoding="utf-8")


def _find_transformer(source: Path) -> str:
    """Return the transformer's own folder in the layout of old sentence-transformers, `0_Transformer`; else ""."""
    try:
        router = read_router(source)
        first = json.loads((source / MODULES).read_text(encoding="utf-8"))[0]["path"]
        name = router.documents[0][0] if router else str(first)
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    is_inner = Path(name).name == name and not (source / "config.json").exists()
    return name if is_inner and (source / name / "config.json").is_file() else ""


def _download(model: ModelEntry, origin: Source, *, with_weights: bool) -> Path:
    hub_id = origin.location
    # Not those of bge-m3's heads, which end in r.
    others = [*(each.replace("*.pt", "*[!r].pt") for each in PICKLES), "*.onnx", "*.h5", "*.msgpack"]
    try:
        with step(f"{model.name}: fetching {hub_id} from the Hugging Face hub"):
            return Path(
                huggingface_hub.snapshot_download(
                    hub_id,
                    revision=origin.revision,
                    ignore_patterns=others if with_weights else [*others, "*.safetensors*"],
                )
            )
    except Exception as error:
        # The library's own message has a page about caches and environment variables.
        raise WeightsUnavailable(
            f"{model.name}: cannot fetch {hub_id} from the hub ({type(error).__name__}), and no such folder exists; "
            "use --weights FOLDER, a downloaded copy"
        ) from error


def _convert(model: ModelEntry, path: Path, folder: Path) -> None:
    """Read weights without running code, and write them under transformers' names as safetensors."""
    state = read_state(model, path, _list_weights(folder))
    unshared = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    safetensors.torch.save_file(unshared, folder / "model.safetensors", metadata={"format": "pt"})


def _convert_head(model: ModelEntry, path: Path) -> None:
    """Write a head of bge-m3, a linear layer, as safetensors in fp32."""
    try:
        found = read_tensors(path, lambda loaded: {name: loaded[name] for name in ("weight", "bias")})
    except Exception as error:
        raise WeightsUnavailable(
            f"{model.name}: {path.name} is not the state dict of a linear layer ({reason(error)}); copy it again"
        ) from error
    safetensors.torch.save_file({name: each.float() for name, each in found.items()}, path.with_suffix(".safetensors"))
    path.unlink()


def _list_weights(folder: Path) -> list[str]:
    """List the names of the weights of config.json's class; none if transformers does not have that class."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            return [*getattr(transformers, config.architectures[0])._from_config(config).state_dict()]
    except Exception:
        return []  # loading the model reports a broken one; only transformers' own classes have known names
