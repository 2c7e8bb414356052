"""Builds image and text embedding: a Hugging Face folder or hub id -> the files of an archive."""

from pathlib import Path
from typing import Any

import openvino
import torch

from deploy.archives.encoders import export as export_text
from deploy.archives.encoders import write_vector_space
from deploy.archives.hub import open_checkpoint, pack
from deploy.archives.networks import export as export_pixels
from deploy.archives.precision.image_fidelity import measure_numbers
from deploy.archives.preprocessing import follow_processor
from deploy.archives.sources import Source
from deploy.archives.tokens import check_tokenizer
from deploy.models import Engine, ModelEntry
from handlers.archive_files import CHECKPOINT, GRAPH
from handlers.config import parse
from handlers.image_text.config import TEXT_GRAPH, ImageTextEmbeddingConfig
from handlers.image_text.towers import load_towers
from handlers.text.encoders import write_tokenizer

FACTS = {
    "settings": "image_text.config:ImageTextEmbeddingConfig",
    "export_settings": (),
    "takes_hub_ids": True,
    "samples": "images",
    "graphs": 2,
}
AUTO = "AutoModel"
measure = measure_numbers


def stage(model: ModelEntry, origin: Source, engine: Engine, folder: Path) -> None:
    """Write the checkpoint, without weights for `openvino`, its preprocessing, and its graphs except for `torch`."""
    parse(ImageTextEmbeddingConfig, model.config().get("handler"))
    with open_checkpoint(model, origin) as source:
        check_tokenizer(model, source)
        seen = follow_processor(source)
        towers = load_towers(source, seen)
        seen.write(folder)
        if engine != "torch":
            graphs = {GRAPH: export_pixels(towers.image, seen, ("embeddings",))}
            if towers.text is not None:
                graphs[TEXT_GRAPH] = export_text(towers.text)
            for name, graph in graphs.items():
                openvino.save_model(graph, folder / name, compress_to_fp16=False)
        pack(source, folder, with_weights=engine != "openvino")
        write_vector_space(source, folder)
        if engine != "torch":
            write_tokenizer(folder / CHECKPOINT, has_tokenizer=towers.text is not None)


def answer(network: Any, values: torch.Tensor) -> list[torch.Tensor]:
    if hasattr(network, "get_image_features"):
        vector = network.get_image_features(pixel_values=values).pooler_output[0]
    else:
        vector = network(pixel_values=values).last_hidden_state[0, 0]
    return [torch.nn.functional.normalize(vector, dim=-1)]
