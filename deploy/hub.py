"""A Hugging Face checkpoint as a folder: a local one, one inside a package, or one from the hub.

Source -> checkpoint -> a folder with what serving needs: configuration, tokenizer, model.safetensors

What is there already stands in it as links, so that nothing is written that the archive then leaves out.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import safetensors.torch
import torch

from deploy.models import Model
from deploy.sources import Source, WeightsUnavailable

# Serving reads these files. READMEs, other frameworks' weights and training state are not among them.
SERVED = re.compile(
    r"(.*/)?("
    r"config\.json|generation_config\.json|modules\.json|sentence_bert_config\.json|config_sentence_transformers\.json|"
    r"special_tokens_map\.json|added_tokens\.json|tokenizer.*|vocab.*|merges\.txt|.*\.spm|.*\.model|.*\.py|"
    r"model.*\.safetensors|model\.safetensors\.index\.json)"
)
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@contextmanager
def checkpoint(model: Model, origin: Source) -> Iterator[Path]:
    """Give a folder with the checkpoint's served files, links among them, for as long as the context lasts.

    Raises:
        WeightsUnavailable: it cannot be had, or only as a pickle that was not asked for by name.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "checkpoint"
        if origin.kind == "hub":
            _link(_downloaded(model, origin.location), folder)
        elif origin.kind == "folder":
            _link(Path(origin.location), folder)
        elif origin.kind == "file":
            _converted(model, Path(origin.location), folder)
        else:
            raise WeightsUnavailable(
                f"{model.name}: no {origin.kind} weights for {model.handler}; give --weights FOLDER or a hub id"
            )
        if not (folder / "config.json").is_file():
            raise WeightsUnavailable(f"{model.name}: {origin.location} holds no config.json")
        if not list(folder.glob("*.safetensors")):
            raise WeightsUnavailable(
                f"{model.name}: {origin.location} has no model.safetensors; a pickle is read only when "
                "--weights names the file itself"
            )
        yield folder


def _link(source: Path, folder: Path) -> None:
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        if path.is_file() and SERVED.fullmatch(relative.as_posix()):
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            (folder / relative).symlink_to(path.resolve())


def _downloaded(model: Model, hub_id: str) -> Path:
    print(f"{model.name}: {hub_id} from the Hugging Face hub")
    try:
        return Path(
            huggingface_hub.snapshot_download(hub_id, ignore_patterns=[*PICKLES, "*.onnx", "*.h5", "*.msgpack"])
        )
    except Exception as error:
        # Its own words go on about caches and environment variables for a page.
        raise WeightsUnavailable(
            f"{model.name}: cannot fetch {hub_id} from the hub ({type(error).__name__}); "
            "give --weights FOLDER, a downloaded copy"
        ) from error


def _converted(model: Model, path: Path, folder: Path) -> None:
    """Read a pickle that the user named without running code, and write it as safetensors beside its configuration."""
    _link(path.parent, folder)
    for weights in folder.glob("*.safetensors*"):
        weights.unlink()
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise WeightsUnavailable(f"{model.name}: {path} cannot be read: {reason}") from error
    unshared = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    safetensors.torch.save_file(unshared, folder / "model.safetensors", metadata={"format": "pt"})
