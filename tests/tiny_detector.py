"""Detectors with seeded weights, since no registry package carries trained ones."""

from pathlib import Path
from typing import Any

import torch
import torchvision
import transformers

from tests import exports

SIDE = 64
# All places of its three maps, so that none is chosen: random weights score them alike, and rounding would decide.
QUERIES = 8 * 8 + 4 * 4 + 2 * 2
LABELS = ("cat", "cup", "spoon", "star", "wall", "door", "tree")


def detector(folder: Path, kind: str = "RTDetrV2") -> Path:
    """Write a checkpoint of RT-DETR v2, or another kind, of some hundred kilobytes, as `save_pretrained` leaves it."""
    stages: dict[str, Any] = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
    stages["out_features"] = ["stage2", "stage3", "stage4"]
    backbone = transformers.RTDetrResNetConfig(embedding_size=16, layer_type="basic", **stages)
    encoder = {"in_channels": [32, 48, 64], "hidden_dim": 32, "ffn_dim": 64, "attention_heads": 4}
    decoder = {"in_channels": [32, 32, 32], "ffn_dim": 64, "layers": 2, "attention_heads": 4}
    sizes: dict[str, Any] = {f"encoder_{name}": size for name, size in encoder.items()}
    sizes |= {f"decoder_{name}": size for name, size in decoder.items()}
    config = getattr(transformers, f"{kind}Config")(
        backbone_config=backbone, d_model=32, num_queries=QUERIES, id2label=dict(enumerate(LABELS)), **sizes
    )
    torch.manual_seed(3)
    model = getattr(transformers, f"{kind}ForObjectDetection")(config).eval()
    with torch.no_grad():
        # Scores of random weights are all alike: those of a picture of noise become a normal distribution around 0.3.
        logits = model(pixel_values=torch.rand(8, 3, 4, 4).repeat_interleave(16, 2).repeat_interleave(16, 3)).logits
        mean, factor = logits.mean((0, 1)), 2 / (logits - logits.mean((0, 1))).std()
        head = model.model.decoder.class_embed[-1]
        head.weight.mul_(factor)
        head.bias.copy_((head.bias - mean) * factor - 1)
    model.save_pretrained(folder)
    transformers.RTDetrImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    return exports.dated(folder)


SSDLITE = "ssdlite320_mobilenet_v3_large"


def ssdlite(folder: Path) -> tuple[Path, torch.nn.Module]:
    """Write the state dict of an SSDLite with as many classes; gives the file and the network."""
    torch.manual_seed(5)
    network = torchvision.models.get_model(
        SSDLITE, weights=None, weights_backbone=None, num_classes=len(LABELS) + 1
    ).train()
    with torch.no_grad():
        noise = torch.nn.functional.interpolate(torch.randn(8, 3, 20, 20), size=(320, 320), mode="bilinear")
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None  # a cumulative average
        network.head(list(network.backbone(noise).values()))
        logits = network.eval().head(list(network.backbone(noise).values()))["cls_logits"]
        for scale in network.head.classification_head.module_list:
            scale[-1].weight.mul_(0.25 / logits.std())
            # Most places show nothing.
            scale[-1].bias.view(-1, len(LABELS) + 1)[:, 0] += 2
    torch.save(network.state_dict(), folder / "ssdlite.pt")
    return folder / "ssdlite.pt", network
