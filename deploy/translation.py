"""Stages what an archive of a translation model holds, made from a Hugging Face folder or hub id."""

import shutil
from pathlib import Path

from deploy.hub import checkpoint
from deploy.models import Engine, Model
from deploy.sources import Source
from deploy.tasks import beside, task_of
from handlers.archive_files import CHECKPOINT
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.text.detection import load_detector
from handlers.text.translation_config import TranslationConfig


def stage(model: Model, origin: Source, engine: Engine, folder: Path) -> None:
    """Write the checkpoint: tokenizer, configuration and model.safetensors, which torch, the only engine, loads.

    The detector of languages that the configuration names goes beside it.

    Raises:
        WeightsUnavailable: the model cannot be had, or only as a pickle.
        InvalidConfig: the configuration is wrong, or the engine is OpenVINO.
    """
    config = parse(TranslationConfig, model.config().get("handler"))
    if engine == "openvino":
        # What exports decoders with their caches, optimum-intel, holds transformers back at 5.5.
        raise InvalidConfig(f"{model.name}: translation runs on torch; give --engine torch, or none")
    for name, path in beside(model, task_of(model)).items():
        shutil.copyfile(path, folder / name)
    if config.detector is not None:
        load_detector(folder)
    with checkpoint(model, origin, with_code=config.trust_remote_code) as source:
        shutil.copytree(source, folder / CHECKPOINT)
