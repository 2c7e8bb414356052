"""From the wheel, in an empty environment and folder: models of each task as other people save them, on two hosts.

The oracle of each answer is the library that owns the model.
"""

import base64
import io
import json
import math
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import onnxruntime
import pytest
import requests
import torch
import torchvision
import transformers
import yaml
from PIL import Image
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder

from load.expect import matches
from load.sandbox import free_ports
from tests.nightly.test_wheel import UV, VARIABLES, Installed, installed, wheel
from tests.own_models import write_project
from tests.photographs import path
from tests.waiting import until

__all__ = ["installed", "wheel"]
pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses", "ignore:`torch.jit:DeprecationWarning"),
]
TOLERANCE = 2e-3
TEXT, QUESTION = "Anna Berg kept the inn at Lindau.", "Who kept the inn?"
PHOTOGRAPH = path("coffee")
NUMBERS = [1.0, -2.0, 3.0, 0.5]
JSON = {"Content-Type": "application/json"}


def pipe(task: str, **options: Any) -> Callable[[Path], Any]:
    def ask(folder: Path) -> Any:
        asked: Any = Image.open(PHOTOGRAPH).convert("RGB") if "image" in task or "object" in task else TEXT
        found = transformers.pipeline(task, model=str(folder), dtype="float32", device="cpu")(asked, **options)
        return json.loads(json.dumps(found, default=float))

    return ask


def classify_picture(folder: Path) -> Any:
    found = pipe("image-classification")(folder)
    return {each["label"]: each["score"] for each in found}


def classify_flower(folder: Path) -> Any:
    network = torchvision.models.resnet18(num_classes=7).eval()
    network.load_state_dict(torch.load(folder.with_suffix(".pth"), weights_only=True))
    seen = torchvision.models.ResNet18_Weights.DEFAULT.transforms()(Image.open(PHOTOGRAPH).convert("RGB"))
    with torch.no_grad():
        best = network(seen[None]).softmax(1)[0].topk(2)
    return {f"flower {n}": float(p) for n, p in zip(best.indices, best.values, strict=True)}


def answer_question(folder: Path) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    encoded = tokenizer(QUESTION, TEXT, return_tensors="pt")
    with torch.no_grad():
        found = model(**encoded)
    is_context = [index for index, each in enumerate(encoded.sequence_ids(0)) if each == 1]
    spans = [(first, last) for first in is_context for last in is_context if first <= last < first + 15]
    # Of whole words, as transformers' pipeline answered.
    first, last = max(spans, key=lambda span: float(found.start_logits[0, span[0]] + found.end_logits[0, span[1]]))
    words = [encoded.token_to_word(token) for token in (first, last)]
    start, end = encoded.word_to_chars(0, words[0], 1).start, encoded.word_to_chars(0, words[1], 1).end
    return {"answer": TEXT[start:end], "start": start, "end": end}


def draw_map(folder: Path) -> Any:
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    model = transformers.AutoModelForSemanticSegmentation.from_pretrained(folder).eval()
    picture = Image.open(PHOTOGRAPH).convert("RGB")
    with torch.no_grad():
        outputs = model(**processor(picture, return_tensors="pt"))
    (found,) = processor.post_process_semantic_segmentation(outputs, [picture.size[::-1]])
    return found.numpy()


def embed_text(folder: Path) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    with torch.no_grad():
        encoded = tokenizer(TEXT, return_tensors="pt")
        states = model.text_model(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"])
        vector = model.text_projection(states.pooler_output)[0]
    return (vector / vector.norm()).tolist()


def translate(folder: Path) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    found = model.generate(**tokenizer(TEXT, return_tensors="pt"), num_beams=1)
    return {"translation_text": tokenizer.decode(found[0], skip_special_tokens=True)}


def name_language(folder: Path) -> Any:
    ((label,), (score,)) = fasttext.load_model(str(folder.with_name("lid.176.ftz"))).predict(TEXT)
    return [{"label": label.removeprefix("__label__"), "score": float(score)}]


def multiply(folder: Path) -> Any:
    session = onnxruntime.InferenceSession(folder.with_suffix(".onnx"))
    return session.run(None, {"x": np.array([NUMBERS], np.float32)})[0][0].tolist()


def name_iris(folder: Path) -> Any:
    load: Any = torch.jit.load
    with torch.no_grad():
        best = int(load(folder.with_suffix(".pt"))(torch.tensor(NUMBERS)).argmax())
    return {"class": ["setosa", "versicolor", "virginica"][best]}


def weigh_words(folder: Path) -> Any:
    weights = SparseEncoder(str(folder), device="cpu").encode(TEXT, convert_to_sparse_tensor=False).numpy()
    (indices,) = weights.nonzero()
    return {"indices": indices.tolist(), "values": weights[indices].tolist()}


# By model: the request, as JSON or a photograph, and the owner's answer.
CASES: dict[str, tuple[Any, Callable[[Path], Any]]] = {
    "reviews": ({"text": TEXT}, pipe("text-classification")),
    "entities": (
        {"text": TEXT, "aggregation": "first"},
        pipe("token-classification", aggregation_strategy="first"),
    ),
    "answers": ({"question": QUESTION, "context": TEXT}, answer_question),
    "vectors": ({"text": TEXT}, lambda folder: SentenceTransformer(str(folder)).encode(TEXT).tolist()),
    "ranker": (
        {"query": QUESTION, "document": TEXT},
        lambda folder: {"score": float(CrossEncoder(str(folder)).predict([(QUESTION, TEXT)])[0])},
    ),
    "words": ({"text": TEXT}, weigh_words),
    "matrices": (
        {"text": TEXT},
        lambda folder: MultiVectorEncoder(str(folder), device="cpu").encode(TEXT, convert_to_numpy=False).tolist(),
    ),
    "tokens": (
        {"text": TEXT},
        lambda folder: {"input_ids": transformers.AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]},
    ),
    "pictures": (PHOTOGRAPH, classify_picture),
    "flowers": (PHOTOGRAPH, classify_flower),
    "boxes": (PHOTOGRAPH, pipe("object-detection", threshold=0.5)),
    "maps": (PHOTOGRAPH, draw_map),
    "clip": ({"text": TEXT}, embed_text),
    "en-fr": ({"text": TEXT, "num_beams": 1}, translate),
    "languages": ({"text": TEXT}, name_language),
    "linear": ({"x": NUMBERS}, multiply),
    "erf": ({"number": 0.3}, lambda _: math.erf(2 * 0.3)),
    "iris": ({"features": NUMBERS}, name_iris),
}


@pytest.fixture(scope="module")
def project(wheel: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    write_project(folder)
    # The owners compute in fp32; `precision: auto` is bf16 where the processor has it.
    for file in (folder / name / "model-config.yaml" for name in CASES if (folder / name).is_dir()):
        settings = yaml.safe_load(file.read_text())["handler"] if file.exists() else {}
        file.write_text(yaml.safe_dump({"handler": {**settings, "precision": "fp32"}}))
    with pytest.raises(AssertionError, match=r"erf: requirements: not installed here: scipy>=1.9; .* -m pip install"):
        wheel.run("archive", "erf", cwd=folder)
    environment = wheel.bin.parent
    subprocess.run([UV, "--quiet", "pip", "install", "--python", environment, "scipy"], env=VARIABLES, check=True)
    wheel.run("archive", "--all", cwd=folder)
    wheel.run("archive", "--from", "iris.mar", "iris", "--stock", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def oracle(project: Path) -> dict[str, Any]:
    return {name: ask(project / name) for name, (_, ask) in CASES.items()}


def check(name: str, url: str, wanted: Any) -> None:
    sent = CASES[name][0]
    body, headers = (PHOTOGRAPH.read_bytes(), {}) if sent is PHOTOGRAPH else (json.dumps(sent).encode(), JSON)
    response = requests.post(f"{url}/predictions/{name}", body, headers=headers, timeout=60)
    assert response.status_code == 200, f"{name}: {response.text}"
    answer = response.json()
    if name == "maps":
        drawn = np.array(Image.open(io.BytesIO(base64.b64decode(answer["map"]))))
        assert drawn.shape == wanted.shape and (drawn == wanted).mean() > 0.99
        return
    if name == "boxes":  # the order of nearly equal scores differs, and the answer has the best ones
        scores = [sorted((box["score"] for box in boxes), reverse=True) for boxes in (wanted, answer)]
        assert answer and matches(scores[0][: len(answer)], scores[1], TOLERANCE), scores
        return
    if name == "linear":
        answer = answer["y"] if isinstance(answer, dict) else answer
    assert matches(wanted, answer, TOLERANCE), f"{name}: {wanted}; {answer}"


def test_one_process_answers_as_the_owners(wheel: Installed, project: Path, oracle: dict[str, Any]) -> None:
    for name, wanted in oracle.items():
        (port,) = free_ports(1)
        # Of the list, which is up to date, or by its file.
        archive = f"model_store/{name}.mar" if name == "reviews" else name
        program = [str(wheel.bin / "torchserve-batching"), "serve", archive, "--port", str(port)]
        server = subprocess.Popen(program, cwd=project, env=VARIABLES)
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda url=url, server=server: is_up(url, server), 120)  # type: ignore[misc]
            check(name, url, wanted)
        finally:
            server.terminate()
            server.wait()


def is_up(url: str, server: "subprocess.Popen[bytes]") -> bool:
    assert server.poll() is None
    try:
        return requests.get(f"{url}/ping", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False


@pytest.fixture
def torchserve(wheel: Installed, project: Path) -> Iterator[tuple[str, str]]:
    """A TorchServe of the project's own configuration; its URLs."""
    names = [f"{api}_address" for api in ("inference", "management", "metrics")]
    names += ["grpc_inference_port", "grpc_management_port"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    lines = [f"{name}={port if 'port' in name else f'http://127.0.0.1:{port}'}" for name, port in ports.items()]
    text = (wheel.package / "config.properties").read_text()
    (project / "config.properties").write_text("\n".join([text, *lines, ""]))
    wheel.run("start", cwd=project)
    yield f"http://127.0.0.1:{ports['inference_address']}", f"http://127.0.0.1:{ports['management_address']}"
    wheel.run("stop", cwd=project)


def test_torchserve_answers_as_the_owners(
    wheel: Installed, project: Path, oracle: dict[str, Any], torchserve: tuple[str, str]
) -> None:
    url, management = torchserve
    for name, wanted in oracle.items():
        wheel.run("--management-url", management, "register", name, "--wait", cwd=project)
        check(name, url, wanted)
        wheel.run("--management-url", management, "unregister", name, cwd=project)
