"""Stages what an archive of a translation model holds, made from a Hugging Face folder or hub id."""

import shutil
from pathlib import Path

from deploy.hub import checkpoint
from deploy.models import Engine, Model
from deploy.sources import Source
from handlers.archive_files import CHECKPOINT
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.text.translation_config import TranslationConfig


def stage(model: Model, origin: Source, engine: Engine, folder: Path) -> None:
    """Write the checkpoint: tokenizer, configuration and model.safetensors, which torch, the only engine, loads.

    Raises:
        WeightsUnavailable: the model cannot be had, or only as a pickle.
        InvalidConfig: the configuration is wrong, or the engine is OpenVINO.
    """
    config = parse(TranslationConfig, model.config().get("handler"))
    if engine == "openvino":
        # What exports decoders with their caches, optimum-intel, holds transformers back at 5.5.
        raise InvalidConfig(f"{model.name}: translation runs on torch; give --engine torch, or none")
    with checkpoint(model, origin, with_code=config.trust_remote_code) as source:
        shutil.copytree(source, folder / CHECKPOINT)
