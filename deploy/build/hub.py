"""A Hugging Face checkpoint as a folder: a local one, one inside a package, or one from the hub.

Source -> checkpoint -> a folder with what serving needs: configuration, tokenizer, model.safetensors

What is there already stands in it as links, so that nothing is written that the archive then leaves out.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import safetensors.torch
import torch
import transformers

from deploy.build.sources import Source, WeightsUnavailable, served_files, unserved_files
from deploy.build.state_dicts import read_state
from deploy.models import ModelEntry
from deploy.progress import step
from handlers.archive_files import CHECKPOINT

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@contextmanager
def open_checkpoint(
    model: ModelEntry, origin: Source, *, with_code: bool = False, with_weights: bool = True, lists_others: bool = True
) -> Iterator[Path]:
    """Give a folder with the checkpoint's served files, links among them, for as long as the context lasts.

    Args:
        model: the entry that it is for.
        origin: where it comes from.
        with_code: whether the Python that it brings belongs to it.
        with_weights: whether its weights do.
        lists_others: whether to print the files that are left out.

    Raises:
        WeightsUnavailable: it cannot be had, or only as a pickle that was not asked for by name.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "checkpoint"
        if origin.kind not in ("hub", "folder", "file"):
            raise WeightsUnavailable(
                f"{model.name}: no {origin.kind} weights for {model.handler}; give --weights FOLDER or a hub id"
            )
        named = Path(origin.location)
        source = _downloaded(model, origin, with_weights=with_weights) if origin.kind == "hub" else named
        if origin.kind == "file":
            source = named.parent
        _check(model, source)
        served = served_files(source, with_code=with_code, is_whole=origin.kind != "file")
        _link(source, served, folder)
        if origin.kind == "file" or not with_weights:
            for path in folder.glob("*.safetensors*"):
                path.unlink()
        if origin.kind == "file" and with_weights:
            _convert(model, named, folder)
        if with_weights and not list(folder.glob("*.safetensors")):
            raise WeightsUnavailable(
                f"{model.name}: {origin.location} has no model.safetensors; a pickle is read only when --weights names "
                "the file itself; if there are several, load them in Python and write them with save_pretrained"
            )
        yield folder
        if lists_others and (others := unserved_files(source, [*served, named])):
            print(f"{model.name}: left out of the archive: {', '.join(others)}", file=sys.stderr)


def _check(model: ModelEntry, source: Path) -> None:
    """Raise WeightsUnavailable if a folder does not hold a whole model."""
    if (source / "adapter_config.json").is_file():
        raise WeightsUnavailable(
            f"{model.name}: {source} holds an adapter (adapter_config.json), not a whole model; merge it with peft's "
            "merge_and_unload() and save the result with save_pretrained"
        )
    if not (source / "config.json").is_file():
        raise WeightsUnavailable(f"{model.name}: {source} holds no config.json; give the folder that has it")


def pack(source: Path, folder: Path, *, with_weights: bool) -> None:
    """Copy a checkpoint into an archive's folder."""
    weights = None if with_weights else shutil.ignore_patterns("*.safetensors*")
    shutil.copytree(source, folder / CHECKPOINT, ignore=weights)


def _link(source: Path, files: Iterable[Path], folder: Path) -> None:
    for path in files:
        link = folder / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())


def _downloaded(model: ModelEntry, origin: Source, *, with_weights: bool) -> Path:
    hub_id = origin.location
    others = [*PICKLES, "*.onnx", "*.h5", "*.msgpack"]
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
        # Its own words go on about caches and environment variables for a page.
        raise WeightsUnavailable(
            f"{model.name}: cannot fetch {hub_id} from the hub ({type(error).__name__}), and no such folder is here; "
            "give --weights FOLDER, a downloaded copy"
        ) from error


def _convert(model: ModelEntry, path: Path, folder: Path) -> None:
    """Read weights without running code, and write them with the names that transformers has, in safetensors."""
    state = read_state(model, path, _expected(folder))
    unshared = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    safetensors.torch.save_file(unshared, folder / "model.safetensors", metadata={"format": "pt"})


def _expected(folder: Path) -> list[str]:
    """List the names of the weights of the class that config.json names; none if transformers does not have it."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            return [*getattr(transformers, config.architectures[0])._from_config(config).state_dict()]
    except Exception:
        # Whoever loads the model reports what is wrong with it; names are known of transformers' own classes alone.
        return []
