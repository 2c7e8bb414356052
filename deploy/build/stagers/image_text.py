"""Stages what an archive of image and text embedding holds, made from a Hugging Face folder or hub id."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import openvino
import transformers
from PIL import Image

from deploy.build.hub import checkpoint, pack
from deploy.build.sources import Source
from deploy.build.stagers.text import export as export_text
from deploy.build.stagers.vision import export as export_pixels
from deploy.models import Engine, Model
from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.errors import InvalidConfig
from handlers.image_text.config import ImageTextEmbeddingConfig
from handlers.image_text.towers import PREPROCESSING, TEXT_GRAPH, Preprocessing, load_towers


def stage(model: Model, origin: Source, engine: Engine, folder: Path) -> None:
    """Write the checkpoint, without its weights for `openvino`, how it sees images, and its graphs but for `torch`.

    Raises:
        WeightsUnavailable: the model cannot be had, or only as a pickle.
        InvalidConfig: the configuration is wrong, or the model is none that is served.
    """
    parse(ImageTextEmbeddingConfig, model.config().get("handler"))
    with checkpoint(model, origin) as source:
        seen = preprocessing(source)
        towers = load_towers(source, seen)
        (folder / PREPROCESSING).write_text(json.dumps(asdict(seen)))
        if engine != "torch":
            graphs = {GRAPH: export_pixels(towers.image, seen.size, ("embeddings",))}
            if towers.text is not None:
                graphs[TEXT_GRAPH] = export_text(towers.text)
            for name, graph in graphs.items():
                openvino.save_model(graph, folder / name, compress_to_fp16=False)
        pack(source, folder, with_weights=engine != "openvino")


def preprocessing(checkpoint: Path) -> Preprocessing:
    """Find out what a checkpoint's image processor does; each class of transformers has defaults of its own.

    Raises:
        InvalidConfig: there is none, or it does what is not done here.
    """
    try:
        said: Any = transformers.AutoImageProcessor.from_pretrained(checkpoint, backend="pil", local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidConfig(f"{checkpoint.name}: no image processor can be read: {reason}") from error
    is_cropped = getattr(said, "do_center_crop", None) and said.crop_size != said.size
    crop = said.crop_size if is_cropped else None
    seen, shorter = crop or said.size, said.size.get("shortest_edge") if crop else None
    width, height = seen.get("width"), seen.get("height")
    is_known = width and height and (shorter or 0) >= (max(width, height) if crop else 0)
    if not (is_known and said.do_resize) or getattr(said, "do_pad", None):
        raise InvalidConfig(f"{checkpoint.name}: its images are neither stretched, nor resized and then cropped")
    white = 1 / said.rescale_factor if said.do_rescale else 1.0
    mean, std = (said.image_mean, said.image_std) if said.do_normalize else ((0.0,) * 3, (1.0,) * 3)
    scaled = ([white * value for value in each] for each in (mean, std))
    return Preprocessing((width, height), shorter, Image.Resampling(said.resample), *scaled)
