"""Image classification answers as torchvision does, however an image is sent and whatever is sent beside it."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
import transformers
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import functional

from deploy.models import Engine
from handlers.tasks.image_classification import ImageClassificationHandler
from tests import exports
from tests.handlers.cpu_graphs import use_cpu_graphs
from tests.handlers.serving import ENGINES, Bad, Made, Patch, assert_own_answers, serve, started
from tests.nightly import image_families
from tests.oracle import assert_order
from tests.photographs import path, photograph
from tests.tables import table

# A small network on small images; its weights are seeded, and its 1000 logits deviate by one.
ARCH, RESIZE, CROP, CLASSES = "squeezenet1_1", 72, 64, 1000
SETTINGS: dict[str, Any] = {"arch": ARCH, "resize_size": RESIZE, "crop_size": CROP, "precision": "fp32", "threads": 1}
NAMES = ("coffee", "chelsea", "china", "rocket", "astronaut")


@pytest.fixture(scope="module")
def archive(archived: Made) -> Path:
    return archived("image_classification", "torch", **SETTINGS)


def classifier(archive: Path, **settings: Any) -> ImageClassificationHandler:
    return started(ImageClassificationHandler(), archive, {**SETTINGS, "engine": "torch", **settings})


@pytest.fixture(scope="module")
def oracle(archive: Path) -> dict[str, NDArray[np.float32]]:
    """Logits of each photograph: torchvision's own transforms and network, one image at a time, in fp32."""
    network = torchvision.models.get_model(ARCH, weights=None).eval()
    network.load_state_dict(torch.load(archive / "model.pt", weights_only=True))
    found = {}
    for name in NAMES:
        resized = functional.resize(Image.open(path(name)).convert("RGB"), [RESIZE], antialias=True)
        pixels = functional.pil_to_tensor(functional.center_crop(resized, [CROP])).float() / 255
        with torch.inference_mode():
            (logits,) = network(functional.normalize(pixels, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))[None])
        found[name] = logits.numpy()
    return found


def b64(body: bytes) -> str:
    return base64.b64encode(body).decode()


def deviation(left: NDArray[Any], right: NDArray[Any]) -> float:
    """The part of the logits that differs; of two photographs, a third or more."""
    left, right = left - left.mean(), right - right.mean()
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))


# One resampling in place of two moves a pixel by one level of 256 at most: 3e-4 of the logits, in fp32.
SAME = 2e-3
BAD: list[Bad] = [
    (b"not an image", 415, "UnsupportedMedia", "Not an image"),
    (photograph("rocket")[:9000], 422, "CorruptInput", "truncated"),
    (json.dumps({"b64": b64(b"x"), "topk": 1}).encode(), 400, "InvalidOption", "topk"),
    ({"body": "text"}, 400, "InvalidBody", ""),
    (json.dumps({"instances": [{"b64": ""}] * 7}).encode(), 413, "TooManyInstances", ""),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_way_to_send_an_image_is_answered_as_torchvision(archived: Made, oracle: Any, engine: Engine) -> None:
    settings = {"top_k": CLASSES, "scaled_decode": False, "max_batch_items": 4, "max_request_items": 6}
    handler = classifier(archived("image_classification", engine, **SETTINGS), engine=engine, **settings)
    assert handler.engine.description == {"openvino": "openvino cpu fp32", "torch": "torch cpu float32"}[engine]
    cat = photograph("chelsea")
    wrapped = "\n".join([b64(cat)[:76], b64(cat)[76:]])
    url_safe = base64.urlsafe_b64encode(cat).decode().rstrip("=")
    cats: list[Any] = [bytearray(cat), {"data": cat}, {"photo": cat}, {"body": {"b64": b64(cat)}}]
    cats += [{"body": {"b64": each}} for each in (f"Data:image/jpeg;BASE64,{b64(cat)}", url_safe)]
    cats += [json.dumps({"b64": wrapped}).encode()]
    good: list[tuple[Any, Any]] = [*((row, oracle["chelsea"]) for row in cats)]
    good += ((photograph(name), oracle[name]) for name in NAMES)
    good.append(({"body": {"b64": b64(cat), "top_k": 3}}, oracle["chelsea"].argsort()[:-4:-1]))

    def same(found: Any, logits: NDArray[Any]) -> bool:
        # Logarithms of all probabilities, in the order of the classes, are logits but for a number in common.
        if len(logits) == 3:
            return list(found) == [handler.labels[index] for index in logits]
        is_sorted = list(found.values()) == sorted(found.values(), reverse=True)
        return is_sorted and deviation(np.log([found[label] for label in handler.labels]), logits) < SAME

    assert_own_answers(handler, good, BAD, same)
    assert min(deviation(oracle["chelsea"], oracle[name]) for name in NAMES if name != "chelsea") > 100 * SAME


def test_hugging_faces_clients_get_labels_as_a_pipeline_has_them(archive: Path, oracle: Any) -> None:
    handler, cat = classifier(archive), photograph("chelsea")
    best = [handler.labels[index] for index in oracle["chelsea"].argsort()[:-4:-1]]
    agents = ["unknown/None; hf_hub/1.2.0; python/3.11", "@huggingface/inference/4.13.3 Node.js/22"]
    sent = [{"User-Agent": each, "body": {"content-type": "image/jpeg"}} for each in agents]
    asked = {"inputs": b64(cat), "parameters": {"top_k": 3, "function_to_apply": "none"}}
    file, other, logits, listed = serve(
        handler, [cat, cat, {"body": asked}, {"body": {"instances": [b64(cat)], "top_k": 3}}], [*sent, {}, {}]
    )
    for answer in (file, other, logits):
        assert [each["label"] for each in answer.body[:3]] == best
    wanted = np.sort(oracle["chelsea"])[:-4:-1]
    np.testing.assert_allclose([each["score"] for each in logits.body], wanted, rtol=0.02)
    # All other clients get the form of TorchServe's handler.
    assert [*listed.body["predictions"][0]] == best


def test_images_on_graphs_are_answered_as_a_processors(archive: Path, monkeypatch: Patch) -> None:
    rows = list(map(photograph, NAMES))
    wanted = [answer.body for answer in serve(classifier(archive), rows)]
    recorder = use_cpu_graphs(monkeypatch)
    handler = classifier(archive, max_batch_items=4)
    recorder.replays = 0
    assert [answer.body for answer in serve(handler, rows)] == [pytest.approx(each, rel=1e-4) for each in wanted]
    assert recorder.replays


@table(
    ("torch", "mobilevit", "multi_label_classification"),
    pytest.param("openvino", "vit", None, marks=pytest.mark.builds),
)
def test_checkpoint_of_transformers_answers_as_its_pipeline(
    engine: Engine, family: str, problem: Any, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    image_families.save(family, weights)
    model = transformers.AutoModelForImageClassification.from_pretrained(weights)
    processor = transformers.AutoImageProcessor.from_pretrained(weights, backend="pil")
    pixels = processor([Image.open(path(name)).convert("RGB") for name in NAMES], return_tensors="pt")
    with torch.no_grad():
        # Logits of random weights are all alike: over these photographs they become one around zero.
        logits = model(**pixels).logits
        factor = 1 / (logits - logits.mean(0)).std()
        model.classifier.weight.mul_(factor)
        model.classifier.bias.copy_((model.classifier.bias - logits.mean(0)) * factor)
    model.config.problem_type = problem
    model.save_pretrained(weights)
    folder = exports.archived("image_classification", weights, tmp_path, {}, engine=engine)
    settings = {"precision": "fp32", "threads": 1, "scaled_decode": False, "engine": engine}
    handler = started(ImageClassificationHandler(), folder, settings)
    pipeline: Any = transformers.pipeline("image-classification", model=model, image_processor=processor)
    for name, answer in zip(NAMES, serve(handler, [photograph(each) for each in NAMES]), strict=True):
        wanted = {each["label"]: each["score"] for each in pipeline(Image.open(path(name)).convert("RGB"))}
        assert_order(wanted.values(), 1e-3)
        assert ([*answer.body], answer.body) == ([*wanted], pytest.approx(wanted, abs=1e-3))


def test_weights_are_read_without_running_their_code(archive: Path, tmp_path: Path) -> None:
    for name in ("index_to_name.json", "preprocessing.json"):
        (tmp_path / name).write_bytes((archive / name).read_bytes())
    # A function that is no weight: reading it must not import it.
    torch.save({"classifier.1.weight": pytest.fail}, tmp_path / "model.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        classifier(tmp_path, engine="torch")
