"""Builds tokenization: the tokenizer's files of a Hugging Face folder or hub id."""

from contextlib import suppress
from pathlib import Path

from deploy.archives.hub import open_checkpoint, pack
from deploy.archives.sources import Source
from deploy.archives.tokens import check_tokenizer
from deploy.models import Engine, ModelEntry
from handlers.archive_files import CHECKPOINT
from handlers.config import parse
from handlers.text.config import TokenizationConfig
from handlers.text.encoders import write_tokenizer

FACTS = {"settings": "text.config:TokenizationConfig", "takes_hub_ids": True, "mode": "classic"}


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:  # noqa: ARG001 - no engine runs
    config = parse(TokenizationConfig, model.config().get("handler"))
    with open_checkpoint(model, origin, with_code=config.trust_remote_code, with_weights=False) as source:
        check_tokenizer(model, source, trust_remote_code=config.trust_remote_code)
        pack(source, folder, with_weights=False)
    # A tokenizer needs no configuration of a model, and its worker then imports transformers.
    if not config.trust_remote_code and (folder / CHECKPOINT / "config.json").is_file():
        with suppress(ValueError):
            write_tokenizer(folder / CHECKPOINT)
