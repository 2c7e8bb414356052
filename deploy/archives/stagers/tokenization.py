"""Stages tokenization: the tokenizer's files of a Hugging Face folder or hub id."""

from pathlib import Path

from deploy.archives.hub import open_checkpoint, pack
from deploy.archives.sources import Source
from deploy.models import Engine, ModelEntry
from handlers.config import parse
from handlers.text.config import TokenizationConfig


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:  # noqa: ARG001 - no engine runs
    """Write the checkpoint without its weights."""
    config = parse(TokenizationConfig, model.config().get("handler"))
    with open_checkpoint(model, origin, with_code=config.trust_remote_code, with_weights=False) as source:
        pack(source, folder, with_weights=False)
