"""Tests that need trained weights: precision, scaled decoding and a move from stock TorchServe change no answer."""

import io
from pathlib import Path

import pytest
import torch
import torchvision
from PIL import Image

from deploy.models import ModelEntry
from deploy.nodes.run.server import Server
from handlers.tasks.image_classification import ImageClassificationHandler
from load.expect import matches
from tests import exports, trained
from tests.e2e.conftest import send
from tests.e2e.test_migration import CLOSE, PHOTOGRAPHS, Compared, compared, resnet_archive  # noqa: F401
from tests.handlers.serving import serve, started
from tests.photographs import MOBILENET_TOP_1, RESNET18_TOP_1, crops, photograph

KNOWN = {"mobilenet_v2": MOBILENET_TOP_1, "resnet18": RESNET18_TOP_1}
# A crop on which fp32's first two answers are this close may fall either way: no approximation is to blame.
UNDECIDED = 0.05


def staged(arch: str, folder: Path) -> Path:
    """Return a folder with what the archive of a network of tests/trained.py holds, for both engines."""
    own, archive = folder / arch, folder / "archive"
    own.mkdir()
    archive.mkdir()
    (own / "model-config.yaml").write_text(f"handler: {{arch: {arch}}}\n")
    torch.save(getattr(trained, arch)(), own / "weights.pt")
    exports.taken(ModelEntry(arch, "image_classification", "1.0", own), str(own / "weights.pt"), archive)
    return archive


@pytest.mark.parametrize(
    ("arch", "precision"),
    [("mobilenet_v2", "fp32"), ("resnet18", "fp32"), pytest.param("resnet18", "bf16", marks=pytest.mark.bf16)],
)
def test_top_1_of_photographs_and_60_crops_survives_precision_and_scaled_decode(
    arch: str, precision: str, tmp_path: Path
) -> None:
    """Against torch fp32 on fully decoded images, in the precisions that are served."""
    bodies = [*map(photograph, KNOWN[arch]), *crops(100)]
    network = torchvision.models.get_model(arch, weights=None).eval()
    network.load_state_dict(getattr(trained, arch)())
    transform = torchvision.models.get_model_weights(arch).IMAGENET1K_V1.transforms()
    normalized = torch.stack([transform(Image.open(io.BytesIO(body)).convert("RGB")) for body in bodies])
    with torch.inference_mode():
        probabilities = network(normalized).softmax(1)
    first, second = probabilities.topk(2).values.T
    decided = first - second > UNDECIDED
    assert decided.sum() >= 60
    handler = started(
        ImageClassificationHandler(), staged(arch, tmp_path), {"arch": arch, "precision": precision, "top_k": 1}
    )
    assert isinstance(handler, ImageClassificationHandler)
    labels = [next(iter(answer.body)) for answer in serve(handler, bodies)]
    assert labels[: len(KNOWN[arch])] == list(KNOWN[arch].values())
    winners = [handler.labels[index] for index in probabilities.argmax(1).tolist()]
    rows = zip(labels, winners, decided.tolist(), strict=True)
    assert [(got, wanted) for got, wanted, is_decided in rows if is_decided and got != wanted] == []


def test_image_classifier_that_is_moved_answers_as_on_stock_torchserve(
    server: Server,
    tmp_path: Path,
    compared: Compared,  # noqa: F811
) -> None:
    compared(resnet_archive(tmp_path), delay_ms=1)
    for body in PHOTOGRAPHS:
        assert matches(send(server, "old", body).body, send(server, "new", body).body, CLOSE)
