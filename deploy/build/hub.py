"""A Hugging Face checkpoint as a folder: a local one, one inside a package, or one from the hub.

Source -> checkpoint -> a folder with what serving needs: configuration, tokenizer, model.safetensors

What is there already stands in it as links, so that nothing is written that the archive then leaves out.
"""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import safetensors.torch
import torch

from deploy.build.sources import Source, WeightsUnavailable, files_beside, served_files
from deploy.models import Model
from handlers.archive_files import CHECKPOINT

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@contextmanager
def checkpoint(model: Model, origin: Source, *, with_code: bool = False, with_weights: bool = True) -> Iterator[Path]:
    """Give a folder with the checkpoint's served files, links among them, for as long as the context lasts.

    Args:
        model: the entry that it is for.
        origin: where it comes from.
        with_code: whether the Python that it brings belongs to it.
        with_weights: whether its weights do.

    Raises:
        WeightsUnavailable: it cannot be had, or only as a pickle that was not asked for by name.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "checkpoint"
        if origin.kind == "hub":
            source = _downloaded(model, origin, with_weights=with_weights)
            _link(source, served_files(source, with_code=with_code), folder)
        elif origin.kind == "folder":
            source = Path(origin.location)
            _link(source, served_files(source, with_code=with_code), folder)
        elif origin.kind == "file":
            _converted(model, Path(origin.location), folder, with_code=with_code)
        else:
            raise WeightsUnavailable(
                f"{model.name}: no {origin.kind} weights for {model.handler}; give --weights FOLDER or a hub id"
            )
        if not (folder / "config.json").is_file():
            raise WeightsUnavailable(f"{model.name}: {origin.location} holds no config.json")
        if not with_weights:
            for weights in folder.glob("*.safetensors*"):
                weights.unlink()
        elif not list(folder.glob("*.safetensors")):
            raise WeightsUnavailable(
                f"{model.name}: {origin.location} has no model.safetensors; a pickle is read only when "
                "--weights names the file itself"
            )
        yield folder


def pack(source: Path, folder: Path, *, with_weights: bool) -> None:
    """Copy a checkpoint into an archive's folder."""
    weights = None if with_weights else shutil.ignore_patterns("*.safetensors*")
    shutil.copytree(source, folder / CHECKPOINT, ignore=weights)


def _link(source: Path, files: Iterable[Path], folder: Path) -> None:
    for path in files:
        link = folder / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())


def _downloaded(model: Model, origin: Source, *, with_weights: bool) -> Path:
    hub_id = origin.location
    others = [*PICKLES, "*.onnx", "*.h5", "*.msgpack"]
    print(f"{model.name}: {hub_id} from the Hugging Face hub")
    try:
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
            f"{model.name}: cannot fetch {hub_id} from the hub ({type(error).__name__}); "
            "give --weights FOLDER, a downloaded copy"
        ) from error


def _converted(model: Model, path: Path, folder: Path, *, with_code: bool) -> None:
    """Read a pickle that the user named without running code, and write it as safetensors beside its configuration."""
    folder.mkdir()
    _link(path.parent, files_beside(path, with_code=with_code), folder)
    for weights in folder.glob("*.safetensors*"):
        weights.unlink()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise WeightsUnavailable(f"{model.name}: {path} cannot be read: {reason}") from error
    unshared = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    safetensors.torch.save_file(unshared, folder / "model.safetensors", metadata={"format": "pt"})
