"""Complete models of images and texts, of a few hundred kilobytes with seeded weights: no package has trained ones."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests import exports
from tests.tiny_models import word_piece

# The side of what the models see, and of a patch; most tokens of a text.
SIDE, PATCH, LIMIT = 32, 8, 24
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
}
VISION: dict[str, Any] = {**SIZES, "image_size": SIDE, "patch_size": PATCH}
SQUARE = {"height": SIDE, "width": SIDE}
# The shorter side is longer than the crop by an odd number, which transformers and torchvision halve differently.
CROPPED: dict[str, Any] = {"size": {"shortest_edge": SIDE + 5}, "crop_size": SQUARE}
# Model type -> the class of its processor, and its settings.
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("CLIP", CROPPED),
    "siglip": ("Siglip", {"size": SQUARE}),
    "chinese_clip": ("ChineseCLIP", {"size": SQUARE, "crop_size": SQUARE, "do_center_crop": True}),
    "dinov2": ("Bit", CROPPED),
    "dinov3_vit": ("ViT", {"size": SQUARE}),
    "vit": ("ViT", {"size": SQUARE}),
}


def clip(folder: Path) -> Path:
    return checkpoint(folder, "clip")


def checkpoint(folder: Path, kind: str) -> Path:
    """Write a checkpoint of a model type of PROCESSORS; returns the folder."""
    settings: dict[str, Any] = VISION
    if kind in ("clip", "siglip", "chinese_clip"):
        roles = {f"{role}_token": f"[{role.upper()}]" for role in ("cls", "sep", "pad", "unk", "mask")}
        if kind == "clip":
            # As CLIP's own: what ends a text pads it, too.
            roles["pad_token"] = roles["sep_token"]
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=word_piece(), model_max_length=LIMIT, **roles)
        tokenizer.save_pretrained(folder)
        ends = {"eos_token_id": tokenizer.sep_token_id, "bos_token_id": tokenizer.cls_token_id}
        text = {"vocab_size": len(tokenizer), "max_position_embeddings": LIMIT, "pad_token_id": tokenizer.pad_token_id}
        projected = {} if kind == "siglip" else {"projection_dim": 16}
        settings = {"text_config": {**SIZES, **text, **ends}, "vision_config": VISION, **projected}
    torch.manual_seed(5)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **settings))
    model.save_pretrained(folder)
    name, of_images = PROCESSORS[kind]
    getattr(transformers, f"{name}ImageProcessorPil")(**of_images).save_pretrained(folder)
    return exports.dated(folder)
