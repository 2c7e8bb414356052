"""Stages what an archive of image and text embedding holds, made from a Hugging Face folder or hub id."""

from pathlib import Path

import openvino

from deploy.build.hub import open_checkpoint, pack
from deploy.build.preprocessing import of_processor
from deploy.build.sources import Source
from deploy.build.stagers.text import export as export_text
from deploy.build.stagers.vision import export as export_pixels
from deploy.models import Engine, ModelEntry
from handlers.archive_files import GRAPH
from handlers.config import parse
from handlers.image_text.config import ImageTextEmbeddingConfig
from handlers.image_text.towers import TEXT_GRAPH, load_towers


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write the checkpoint, without its weights for `openvino`, how it sees images, and its graphs but for `torch`.

    Raises:
        WeightsUnavailable: the model cannot be had, or only as a pickle.
        InvalidConfig: the configuration is wrong, or the model is none that is served.
    """
    parse(ImageTextEmbeddingConfig, model.config().get("handler"))
    with open_checkpoint(model, origin) as source:
        seen = of_processor(source)
        towers = load_towers(source, seen)
        seen.write(folder)
        if engine != "torch":
            graphs = {GRAPH: export_pixels(towers.image, seen, ("embeddings",))}
            if towers.text is not None:
                graphs[TEXT_GRAPH] = export_text(towers.text)
            for name, graph in graphs.items():
                openvino.save_model(graph, folder / name, compress_to_fp16=False)
        pack(source, folder, with_weights=engine != "openvino")
