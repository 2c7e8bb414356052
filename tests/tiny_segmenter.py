"""Segmenters with seeded weights, since no registry package carries trained ones."""

from pathlib import Path
from typing import Any

import torch
import transformers

from deploy.archives.sources import source
from deploy.archives.weights import load_weights
from deploy.models import model
from tests import exports

SIDE = 128
LABELS = ("sky", "wall", "cat", "cup", "road", "tree")


def lraspp(folder: Path) -> Path:
    """Write the weights of the example, 13 MB; gives the file."""
    entry, file = model("image-segmentation"), folder / "lraspp.pt"
    torch.save(load_weights(entry, "lraspp_mobilenet_v3_large", source(entry, "random"), weights_backbone=None), file)
    return file


def segmenter(folder: Path, is_beit: bool = False) -> Path:
    """Write a checkpoint of SegFormer or BEiT, of some hundred kilobytes, as `save_pretrained` leaves it."""
    labels, square = dict(enumerate(LABELS)), {"height": SIDE, "width": SIDE}
    sizes: dict[str, Any] = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "decoder_hidden_size": 32}
    config: Any = transformers.SegformerConfig(num_attention_heads=[1, 2, 2, 4], id2label=labels, **sizes)
    processor: Any = transformers.SegformerImageProcessor(size=square)
    if is_beit:
        sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
        sizes |= {"image_size": SIDE, "patch_size": 32, "initializer_range": 0.3, "use_auxiliary_head": False}
        stages = [f"stage{number}" for number in range(1, 5)]
        config = transformers.BeitConfig(out_features=stages, id2label=labels, **sizes)
        processor = transformers.BeitImageProcessor(size=square, do_center_crop=False)
    torch.manual_seed(1)
    model = transformers.AutoModelForSemanticSegmentation.from_config(config).eval()
    with torch.no_grad():
        # Logits of random weights are nearly alike: those of a picture of noise get deviations of 2 around 0.
        noise = torch.randn(8, 3, 4, 4).repeat_interleave(SIDE // 4, 2).repeat_interleave(SIDE // 4, 3)
        logits = model(pixel_values=noise).logits
        mean, deviation = logits.mean((0, 2, 3)), logits.std((0, 2, 3)) / 2
        head = model.decode_head.classifier
        head.weight.div_(deviation[:, None, None, None])
        head.bias.copy_((head.bias - mean) / deviation)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return exports.dated(folder)
