"""Builds language identification: one fastText model, checked."""

import shutil
from pathlib import Path

from deploy.archives.sources import Source, WeightsUnavailable
from deploy.models import Engine, ModelEntry
from handlers.config import parse
from handlers.engines.fasttext import FastTextEngine
from handlers.errors import InvalidConfig
from handlers.text.config import LanguageIdConfig

FACTS = {"settings": "text.config:LanguageIdConfig", "mode": "classic"}

SUFFIXES = (".ftz", ".bin")


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:  # noqa: ARG001 - fastText runs it
    parse(LanguageIdConfig, model.config().get("handler"))
    path = Path(origin.location)
    if origin.kind != "file" or path.suffix not in SUFFIXES:
        raise WeightsUnavailable(
            f"{model.name}: {origin.location or origin.kind} is not a fastText model; use --weights FILE, .ftz or .bin"
        )
    staged = folder / f"model{path.suffix}"
    shutil.copyfile(path, staged)
    try:
        FastTextEngine(staged)
    except InvalidConfig as error:
        raise InvalidConfig(f"{model.name}: {path}: not a whole fastText model; download it again") from error
