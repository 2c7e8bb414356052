"""Vectors are pooled and normalised as the model's own files say; a model's limit of tokens is what they say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from deploy.models import model
from deploy.sources import source
from deploy.text import stage
from handlers.archive_files import CHECKPOINT
from handlers.errors import InvalidConfig
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.text.encoders import Pooling, token_limit
from tests import tiny_models
from tests.handlers.serving import serve, started
from tests.tiny_models import TEXTS

ENTRY = model("sentence-embedding")
# As sentence-transformers writes it beside a model.
MODULES = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
NORMALIZE = {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}


def write(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))


def embedder(archive: Path, **settings: Any) -> SentenceEmbeddingHandler:
    ready = started(SentenceEmbeddingHandler(), archive, {"precision": "fp32", "threads": 1, **settings})
    assert isinstance(ready, SentenceEmbeddingHandler)
    return ready


def vectors(handler: SentenceEmbeddingHandler, texts: list[str]) -> NDArray[np.float32]:
    answers = serve(handler, [text.encode() for text in texts])
    assert {answer.status for answer in answers} == {200}
    return np.array([answer.body for answer in answers], np.float32)


@pytest.fixture(scope="module")
def plain(tiny_archive: Callable[..., Path]) -> Path:
    """A BERT without sentence-transformers' files: the mean as it is."""
    return tiny_archive("bert", "sentence_embedding")


@pytest.fixture(scope="module")
def normalized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DistilBERT whose files ask for the first token's state, normalised."""
    folder = tmp_path_factory.mktemp("normalized")
    checkpoint = tiny_models.checkpoint(folder / "checkpoint", "distilbert", "sentence_embedding")
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    write(checkpoint, {"modules.json": [*MODULES, NORMALIZE], "1_Pooling/config.json": pooling})
    (folder / "archive").mkdir()
    stage(ENTRY, source(ENTRY, str(checkpoint)), "auto", folder / "archive")
    return folder / "archive"


def recipe(archive: Path, *, is_normalized: bool) -> NDArray[np.float32]:
    """The oracle: transformers' states in fp32, one text at a time, pooled by hand."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(archive / CHECKPOINT)
    network = transformers.AutoModel.from_pretrained(archive / CHECKPOINT).eval()
    found = []
    for text in TEXTS:
        with torch.inference_mode():
            states = network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
        found.append(states[0] / np.linalg.norm(states[0]) if is_normalized else states.mean(0))
    return np.stack(found)


@pytest.mark.parametrize(
    ("name", "settings", "tolerance"),
    [
        ("plain", {"engine": "openvino"}, 1e-4),
        ("plain", {"engine": "torch"}, 1e-4),
        ("plain", {"engine": "openvino", "padding": "max_length", "max_items": 3}, 1e-4),
        ("normalized", {"engine": "openvino"}, 1e-4),
        # bf16 rounds each factor by 2**-9; states of random weights have a size of one.
        pytest.param("plain", {"engine": "openvino", "precision": "bf16"}, 5e-2, marks=pytest.mark.bf16),
    ],
)
def test_embedding_batch_of_mixed_lengths_equals_the_models_own_recipe(
    name: str, settings: dict[str, Any], tolerance: float, request: pytest.FixtureRequest
) -> None:
    archive = request.getfixturevalue(name)
    expected = recipe(archive, is_normalized=name == "normalized")
    actual = vectors(embedder(archive, **settings), [*TEXTS])
    assert actual.shape == (len(TEXTS), 32)
    assert np.abs(actual - expected).max() < tolerance


def test_embedding_truncation_cuts_what_is_too_long(plain: Path) -> None:
    # Four words of a token each stand between [CLS] and [SEP].
    cut, whole = vectors(embedder(plain, truncation=True, max_length=6), ["river " * 30, "river river river river"])
    assert np.abs(cut - whole).max() < 1e-4


def test_embedding_instances_of_many_lengths_share_few_forward_passes(plain: Path) -> None:
    texts = ["word " * count for count in range(1, 61)]
    (answer,) = serve(embedder(plain), [json.dumps({"instances": texts}).encode()])
    assert len(answer.body["predictions"]) == 60
    size = int(answer.headers["Server-Timing"].rpartition('"')[0].rpartition('"')[2])
    assert size >= 5


BERT = {"max_position_embeddings": 512, "model_type": "bert", "pad_token_id": 0}
ROBERTA = {"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1}


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"sentence_bert_config.json": {"max_seq_length": 128}, "config.json": BERT}, 128),
        ({"config.json": BERT}, 512),
        ({"config.json": ROBERTA}, 512),
        ({"config.json": {}, "tokenizer_config.json": {"model_max_length": 10**30}}, None),
        ({"config.json": BERT, "tokenizer_config.json": {"model_max_length": 384}}, 384),
    ],
)
def test_token_limit_is_what_the_models_files_say(files: dict[str, Any], limit: int | None, tmp_path: Path) -> None:
    write(tmp_path, files)
    assert token_limit(tmp_path) == limit


STATES = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [50.0, 60.0]], [[5.0, 6.0], [7.0, 8.0], [9.0, 1.0]]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


@pytest.mark.parametrize(
    ("config", "pooled"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, [[2.0, 3.0], [7.0, 5.0]]),
        ({"pooling_mode_cls_token": True}, [[1.0, 2.0], [5.0, 6.0]]),
        ({"pooling_mode_lasttoken": True}, [[3.0, 4.0], [9.0, 1.0]]),
        ({"pooling_mode": "cls"}, [[1.0, 2.0], [5.0, 6.0]]),
        ({}, [[2.0, 3.0], [7.0, 5.0]]),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, None),
    ],
)
def test_pooling_is_what_the_models_files_say_or_refused(
    config: dict[str, Any], pooled: list[list[float]] | None, tmp_path: Path
) -> None:
    write(tmp_path, {"modules.json": MODULES, "1_Pooling/config.json": config})
    if pooled is None:
        with pytest.raises(InvalidConfig, match="is not supported; supported are"):
            Pooling.read(tmp_path)
        return
    pooling = Pooling.read(tmp_path)
    assert pooling.pool(STATES, MASK).tolist() == pytest.approx(np.array(pooled))
    assert not pooling.is_normalized
