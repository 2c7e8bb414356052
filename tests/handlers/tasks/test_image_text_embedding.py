"""Images and texts get the vectors of their model, in any mix of a batch."""

import base64
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from deploy.models import Engine
from handlers.errors import InvalidConfig
from handlers.image_text.families import read_family
from handlers.tasks.image_text_embedding import ImageTextEmbeddingHandler
from tests import exports, tiny_image_text
from tests.handlers.serving import assert_own_answers, serve, started
from tests.handlers.tasks.test_retrieval import ask, vectors
from tests.photographs import encoded, path, photograph
from tests.tiny_models import TEXTS

SETTINGS: dict[str, Any] = {"threads": 1, "precision": "fp32", "scaled_decode": False, "truncation": True}
NAMES = ("coffee", "chelsea", "china", "rocket")
TWO_TOWERS, IMAGES_ALONE = ("clip", "siglip", "chinese_clip"), ("dinov2", "dinov3_vit", "vit")
PATCHES = (tiny_image_text.SIDE // tiny_image_text.PATCH) ** 2
Archives = Callable[..., tuple[Path, Path]]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Archives:
    @cache
    def make(kind: str, engine: Engine = "torch") -> tuple[Path, Path]:
        weights = tiny_image_text.checkpoint(tmp_path_factory.mktemp("weights"), kind)
        folder = tmp_path_factory.mktemp("archive")
        return weights, exports.archived("image_text_embedding", weights, folder, SETTINGS, engine=engine)

    return make


def start(archives: Archives, kind: str, engine: Engine = "torch", **settings: Any) -> ImageTextEmbeddingHandler:
    settings = {**SETTINGS, "engine": engine, **settings}
    ready = started(ImageTextEmbeddingHandler(), archives(kind, engine)[1], settings)
    assert isinstance(ready, ImageTextEmbeddingHandler)
    return ready


def oracle(weights: Path, kind: str) -> tuple[Any, Any]:
    """The vectors of NAMES and of TEXTS, each alone: transformers' own `image_embeds` and `text_embeds`."""
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


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        *((kind, "torch") for kind in ("siglip", "vit")),
        *(
            pytest.param(kind, "torch", marks=pytest.mark.builds)
            for kind in ("clip", "chinese_clip", "dinov2", "dinov3_vit")
        ),
        *(pytest.param(kind, "openvino", marks=pytest.mark.builds) for kind in (*TWO_TOWERS, *IMAGES_ALONE)),
    ],
)
def test_any_mix_in_a_batch_gets_the_models_own_vectors(archives: Archives, kind: str, engine: Engine) -> None:
    images, texts = oracle(archives(kind)[0], kind)
    # Otherwise the test would pass with any image's vector.
    assert np.abs(images[0] - images[1]).max() > 1e-2
    good: list[tuple[Any, Any]] = [*zip(map(photograph, NAMES), images, strict=True)]
    if texts is not None:
        assert np.abs(texts[0] - texts[1]).max() > 1e-2
        good += zip(TEXTS, texts, strict=True)
    same = partial(np.allclose, atol=1e-4)
    assert_own_answers(start(archives, kind, engine=engine), good, same=same)


def test_clients_of_jina_and_infinity_send_images_and_texts(archives: Archives) -> None:
    images, texts = oracle(archives("clip")[0], "clip")
    handler = start(archives, "clip", is_matryoshka=True)
    mixed, modality, one, cut, packed, text, bare = ask(
        handler,
        "embeddings",
        {
            "input": [{"image": uri("coffee")}, {"text": TEXTS[0]}, TEXTS[3], uri("china")],
            "normalized": True,
            "task": "retrieval.query",
        },
        {"input": [uri("coffee"), uri("chelsea")], "modality": "image"},
        {"input": {"image": uri("chelsea")}},
        {"input": [{"image": uri("coffee")}], "dimensions": 4},
        {"input": [{"image": uri("coffee")}], "embedding_type": "base64"},
        {"input": TEXTS[0], "modality": "text"},
        {"input": [{"image": uri("coffee").partition(",")[2]}]},
    )
    np.testing.assert_allclose(vectors(mixed), [images[0], texts[0], texts[3], images[2]], atol=1e-4)
    np.testing.assert_allclose(vectors(modality), images[:2], atol=1e-4)
    np.testing.assert_allclose(vectors(one), images[1:2], atol=1e-4)
    np.testing.assert_allclose(vectors(cut), [images[0][:4] / np.linalg.norm(images[0][:4])], atol=1e-4)
    decoded = np.frombuffer(base64.b64decode(packed.body["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(decoded, images[0], atol=1e-4)
    np.testing.assert_allclose(vectors(text), texts[:1], atol=1e-4)
    np.testing.assert_allclose(vectors(bare), images[:1], atol=1e-4)
    assert one.body["usage"]["total_tokens"] == PATCHES
    content = [{"type": "image_url", "image_url": {"url": uri("china")}}], [{"type": "text", "text": TEXTS[0]}]
    rows = [
        {"images": [uri("coffee")], "input_type": "image", "embedding_types": ["float"]},
        {"inputs": [{"content": each} for each in content], "input_type": "search_document"},
    ]
    answers = serve(handler, [{"body": json.dumps(row).encode()} for row in rows], [{"x-api": "cohere-v2"}] * 2)
    found = [vector for answer in answers for vector in answer.body["embeddings"]["float"]]
    np.testing.assert_allclose(found, [images[0], images[2], texts[0]], atol=1e-4)
    assert text.body["usage"]["total_tokens"] == len(handler.tokenizer(TEXTS[0])["input_ids"])
    # A model of images alone needs no word for them.
    (alone,) = ask(start(archives, "vit"), "embeddings", {"input": [uri("coffee")]})
    np.testing.assert_allclose(vectors(alone), oracle(archives("vit")[0], "vit")[0][:1], atol=1e-4)


def test_our_own_forms_say_what_is_an_image_and_what_a_text(archives: Archives) -> None:
    images, texts = oracle(archives("clip")[0], "clip")
    handler = start(archives, "clip")
    cat = base64.b64encode(photograph("chelsea")).decode()
    pixels = np.asarray(Image.open(path("chelsea")).convert("RGB"))
    tensor = {"name": "image", "datatype": "UINT8", "shape": [1, *pixels.shape], "data": pixels.ravel().tolist()}
    rows: list[Any] = [
        {
            "body": {
                "instances": [{"b64": cat}, {"text": TEXTS[0]}, TEXTS[1], {"text": "x", "b64": cat}, {"b64": "QUJD"}]
            }
        },
        # TorchServe leaves texts undecoded where it is told to.
        {"body": TEXTS[0].encode()},
        {"body": {"inputs": [tensor]}},
        {"body": {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": [*TEXTS[:2]]}]}},
        {"body": {"b64": "data:image/png,ABC"}},
    ]
    listed, plain, tensors, words, wrong = serve(
        handler, rows, [{}, {"body": {"content-type": "text/plain"}}, {}, {}, {}]
    )
    *good, both, short = listed.body["predictions"]
    np.testing.assert_allclose(good, [images[1], *texts[:2]], atol=1e-4)
    assert [each["error"]["type"] for each in (both, short)] == ["InvalidBody", "UnsupportedMedia"]
    np.testing.assert_allclose(plain.body, texts[0], atol=1e-4)
    np.testing.assert_allclose(tensors.body["outputs"][0]["data"], images[1], atol=1e-4)
    np.testing.assert_allclose(words.body["outputs"][0]["data"], texts[:2].ravel(), atol=1e-4)
    assert wrong.status == 422


CUT = "data:image/jpeg;base64," + base64.b64encode(photograph("rocket")[:9000]).decode()
HUGE = "data:image/png;base64," + base64.b64encode(encoded(Image.new("L", (1000, 1100)), "PNG")).decode()
BAD: list[tuple[dict[str, Any], int, str, str]] = [
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


def test_bad_input_is_refused_and_the_rest_of_the_batch_is_unharmed(archives: Archives) -> None:
    handler = start(archives, "clip", max_pixels=1_000_000)
    good = {"input": [{"text": TEXTS[0]}, {"image": uri("coffee")}]}
    (alone,) = ask(handler, "embeddings", good)
    first, *answers, last = ask(handler, "embeddings", good, *(body for body, *_ in BAD), good)
    for answer, (body, status, param, words) in zip(answers, BAD, strict=True):
        error = answer.body["error"]
        assert (answer.status, error["param"], error["type"]) == (status, param, "invalid_request_error"), body
        assert words in error["message"], error["message"]
    for answer in (first, last):
        np.testing.assert_allclose(vectors(answer), vectors(alone), atol=1e-5)
    (texts,) = ask(start(archives, "vit"), "embeddings", {"input": "x", "modality": "text"})
    assert (texts.status, texts.body["error"]["message"]) == (400, "modality: must be image.")
    (refused,) = serve(start(archives, "vit"), [{"body": "a text"}])
    assert (refused.status, refused.body["message"]) == (400, "An item of this model must be an image.")


def test_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    transformers.BertConfig().save_pretrained(tmp_path)
    with pytest.raises(InvalidConfig, match="bert is not supported for embedding images"):
        read_family(tmp_path)
