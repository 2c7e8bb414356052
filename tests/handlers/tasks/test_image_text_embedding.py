"""Images and texts get the vectors of their model, in any mix of a batch."""

import base64
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from deploy.models import Engine
from handlers.archive_files import CHECKPOINT
from handlers.errors import InvalidConfig
from handlers.image_text.config import read_family
from handlers.tasks.image_text_embedding import ImageTextEmbeddingHandler
from tests import tiny_image_text
from tests.handlers.serving import Made, assert_own_answers, serve, started
from tests.handlers.tasks.test_retrieval import ask, assert_rejected, vectors
from tests.photographs import encoded, path, photograph
from tests.tables import table
from tests.tiny_models import TEXTS

SETTINGS: dict[str, Any] = {"threads": 1, "precision": "fp32", "scaled_decode": False, "truncation": True}
NAMES = ("coffee", "chelsea", "china", "rocket")
TWO_TOWERS, BUILT = ("clip", "siglip", "chinese_clip"), pytest.mark.builds


def archive_of(archived: Made, kind: str, engine: Engine = "torch") -> Path:
    return archived("image_text_embedding", engine, tiny_image_text.checkpoint, kind, **SETTINGS)


def start(archived: Made, kind: str, engine: Engine = "torch", **settings: Any) -> ImageTextEmbeddingHandler:
    settings = {**SETTINGS, "engine": engine, **settings}
    return started(ImageTextEmbeddingHandler(), archive_of(archived, kind, engine), settings)


def oracle(archived: Made, kind: str) -> tuple[Any, Any]:
    """The vectors of NAMES and of TEXTS, each alone: transformers' own `image_embeds` and `text_embeds`."""
    weights = archive_of(archived, kind) / CHECKPOINT
    model = transformers.AutoModel.from_pretrained(weights).eval()
    images = transformers.AutoImageProcessor.from_pretrained(weights, backend="pil")
    pixels = [images(Image.open(path(name)).convert("RGB"), return_tensors="pt") for name in NAMES]
    with torch.no_grad():
        if kind not in TWO_TOWERS:
            vectors = torch.cat([model(**each).last_hidden_state[:, 0] for each in pixels])
            return torch.nn.functional.normalize(vectors, dim=-1).numpy(), None
        tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
        padding = "max_length" if kind == "siglip" else False
        texts = [tokenizer(each, truncation=True, padding=padding, return_tensors="pt") for each in TEXTS]
        for each in texts:
            each.pop("token_type_ids", None)
            if kind == "siglip":
                each.pop("attention_mask")
        both = [model(**{**pixels[0], **each}) for each in texts]
        text_embeds = torch.cat([each.text_embeds for each in both])
        image_embeds = torch.cat([model(**{**each, **texts[0]}).image_embeds for each in pixels])
    return image_embeds.numpy(), text_embeds.numpy()


def uri(name: str) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(photograph(name)).decode()


@table(
    *(("siglip", "torch"), ("vit", "torch")),
    *(pytest.param(kind, "openvino", marks=BUILT) for kind in tiny_image_text.PROCESSORS),
)
def test_any_mix_in_a_batch_gets_the_models_own_vectors(kind: str, engine: Engine, archived: Made) -> None:
    images, texts = oracle(archived, kind)
    # Otherwise the test would pass with any image's vector.
    assert np.abs(images[0] - images[1]).max() > 1e-2
    good: list[tuple[Any, Any]] = [*zip(map(photograph, NAMES), images, strict=True)]
    if texts is not None:
        assert np.abs(texts[0] - texts[1]).max() > 1e-2
        good += zip(TEXTS, texts, strict=True)
    assert_own_answers(start(archived, kind, engine), good, same=partial(np.allclose, atol=1e-4))


def test_clients_of_jina_and_infinity_send_images_and_texts(archived: Made) -> None:
    images, texts = oracle(archived, "clip")
    handler = start(archived, "clip", is_matryoshka=True)
    coffee, chelsea, china = map(uri, NAMES[:3])
    both = [{"image": coffee}, {"text": TEXTS[0]}, TEXTS[3], china]
    asked: list[dict[str, Any]] = [
        {"input": both, "normalized": True, "task": "retrieval.query"},
        *({"input": [coffee, chelsea], "modality": "image"}, {"input": {"image": chelsea}}),
        *({"input": [{"image": coffee}], "dimensions": 4}, {"input": [{"image": coffee}], "embedding_type": "base64"}),
        *({"input": TEXTS[0], "modality": "text"}, {"input": [{"image": coffee.partition(",")[2]}]}),
    ]
    mixed, modality, one, cut, packed, text, bare = ask(handler, "embeddings", *asked)
    same = partial(np.testing.assert_allclose, atol=1e-4)
    same(vectors(mixed), [images[0], texts[0], texts[3], images[2]])
    for answer, wanted in ((modality, images[:2]), (one, images[1:2]), (text, texts[:1]), (bare, images[:1])):
        same(vectors(answer), wanted)
    same(vectors(cut), [images[0][:4] / np.linalg.norm(images[0][:4])])
    same(np.frombuffer(base64.b64decode(packed.body["data"][0]["embedding"]), "<f4"), images[0])
    assert one.body["usage"]["total_tokens"] == (tiny_image_text.SIDE // tiny_image_text.PATCH) ** 2
    content = [{"type": "image_url", "image_url": {"url": china}}], [{"type": "text", "text": TEXTS[0]}]
    rows: list[Any] = [{"images": [coffee], "input_type": "image", "embedding_types": ["float"]}]
    rows.append({"inputs": [{"content": each} for each in content], "input_type": "search_document"})
    answers = serve(handler, [{"body": json.dumps(row).encode()} for row in rows], [{"x-api": "cohere-v2"}] * 2)
    found = [vector for answer in answers for vector in answer.body["embeddings"]["float"]]
    same(found, [images[0], images[2], texts[0]])
    assert text.body["usage"]["total_tokens"] == len(handler.tokenizer(TEXTS[0])["input_ids"])
    (alone,) = ask(start(archived, "vit"), "embeddings", {"input": [coffee]})
    same(vectors(alone), oracle(archived, "vit")[0][:1])


def test_our_own_forms_say_what_is_an_image_and_what_a_text(archived: Made) -> None:
    images, texts = oracle(archived, "clip")
    handler, cat = start(archived, "clip"), base64.b64encode(photograph("chelsea")).decode()
    pixels = np.asarray(Image.open(path("chelsea")).convert("RGB"))
    tensor = {"name": "image", "datatype": "UINT8", "shape": [1, *pixels.shape], "data": pixels.ravel().tolist()}
    instances = [{"b64": cat}, {"text": TEXTS[0]}, TEXTS[1], {"text": "x", "b64": cat}, {"b64": "QUJD"}]
    rows: list[Any] = [
        {"body": {"instances": instances}},
        # TorchServe leaves texts undecoded where it is told to.
        {"body": TEXTS[0].encode()},
        {"body": {"inputs": [tensor]}},
        {"body": {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": [*TEXTS[:2]]}]}},
        {"body": {"b64": "data:image/png,ABC"}},
    ]
    headers = [{}, {"body": {"content-type": "text/plain"}}, {}, {}, {}]
    listed, plain, tensors, words, wrong = serve(handler, rows, headers)
    *good, both, short = listed.body["predictions"]
    np.testing.assert_allclose(good, [images[1], *texts[:2]], atol=1e-4)
    assert [each["error"]["type"] for each in (both, short)] == ["InvalidBody", "UnsupportedMedia"]
    np.testing.assert_allclose(plain.body, texts[0], atol=1e-4)
    np.testing.assert_allclose(tensors.body["outputs"][0]["data"], images[1], atol=1e-4)
    np.testing.assert_allclose(words.body["outputs"][0]["data"], texts[:2].ravel(), atol=1e-4)
    assert wrong.status == 422


CUT = "data:image/jpeg;base64," + base64.b64encode(photograph("rocket")[:9000]).decode()
HUGE = "data:image/png;base64," + base64.b64encode(encoded(Image.new("L", (1000, 1100)), "PNG")).decode()
BAD: list[tuple[Any, int, str | None, str]] = [
    ({"input": [{"text": "x"}, {"image": CUT}]}, 422, "input", "input[1]: The JPEG data is truncated"),
    ({"input": ["x", {"image": HUGE}]}, 413, "input", "input[1]: The image has 1100000 pixels"),
    ({"input": ["x", {"image": "QUJD"}]}, 415, "input", "input[1]: Not an image"),
    ({"input": ["x", {"image": 7}]}, 400, "input", "input[1]: must be a data URI"),
    ({"input": ["x", {"image": "https://example.org/cat.jpg"}]}, 400, "input", "input[1]: this server fetches no URLs"),
    ({"input": [" file:///etc/passwd"], "modality": "image"}, 400, "input", "input[0]: this server fetches no URLs"),
    ({"input": ["x", {"video": "AAAA"}]}, 400, "input", 'a string or {"text": ...} or {"image": ...}'),
    ({"input": ["x", {"image": "AAAA", "text": "x"}]}, 400, "input", "input[1]: must be a string or"),
    ({"input": ["x"], "modality": "audio"}, 400, "modality", "modality: must be text or image"),
    ({"input": [{"image": uri("coffee")}], "dimensions": 5}, 400, "dimensions", "dimensions: must be 16"),
    ({"input": ["x"], "normalized": False}, 400, "normalized", "normalized"),
]  # fmt: skip


def test_bad_input_is_rejected_and_the_rest_of_the_batch_is_unharmed(archived: Made, tmp_path: Path) -> None:
    handler = start(archived, "clip", max_pixels=1_000_000)
    assert_rejected(handler, "embeddings", {"input": [{"text": TEXTS[0]}, {"image": uri("coffee")}]}, BAD)
    (texts,) = ask(start(archived, "vit"), "embeddings", {"input": "x", "modality": "text"})
    assert (texts.status, texts.body["error"]["message"]) == (400, "modality: must be image.")
    (rejected,) = serve(start(archived, "vit"), [{"body": "a text"}])
    assert (rejected.status, rejected.body["message"]) == (400, "An item of this model must be an image.")
    # So is a model of another kind.
    transformers.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(InvalidConfig, match="bert is not supported for embedding images"):
        read_family(tmp_path)
