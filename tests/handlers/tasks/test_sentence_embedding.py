import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from deploy.models import model
from deploy.sources import Source, WeightsUnavailable, source
from deploy.text import stage
from handlers.archive_files import CHECKPOINT
from handlers.errors import InvalidConfig
from handlers.tasks.sentence_embedding import SentenceEmbeddingHandler
from handlers.text.encoders import Pooling, token_limit
from tests.handlers.serving import serve, started

ENTRY = model("sentence-embedding")
KOREAN = json.loads((ENTRY.folder / "news.json").read_text())["instances"]
TEXTS = [
    *KOREAN,
    "A short one.",
    "The central bank kept its interest rate. " * 20,
    "👩‍👩‍👧 goes to the beach 🏖️",
    "מזג האוויר נעים היום",
    "What a goal! " * 9,
    "x",
    "Rain is expected across the whole country tomorrow, forecasters said, and it will not stop before Friday.",
]


@pytest.fixture(scope="module")
def staged(staged_example: Callable[[str], Path]) -> Path:
    return staged_example(ENTRY.name)


def embedder(staged: Path, **settings: Any) -> SentenceEmbeddingHandler:
    ready = started(SentenceEmbeddingHandler(), staged, {"precision": "fp32", **settings})
    assert isinstance(ready, SentenceEmbeddingHandler)
    return ready


@pytest.fixture(scope="module")
def handler(staged: Path) -> SentenceEmbeddingHandler:
    return embedder(staged)


@pytest.fixture(scope="module")
def expected(staged: Path) -> NDArray[np.float32]:
    """The oracle: the model card's own recipe, one text at a time, in fp32 torch."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(staged / CHECKPOINT)
    network = transformers.AutoModel.from_pretrained(staged / CHECKPOINT).eval()
    vectors = []
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            states = network(**inputs).last_hidden_state[0]
        vectors.append(torch.nn.functional.normalize(states.mean(0), dim=0).numpy())
    return np.stack(vectors)


def vectors(handler: SentenceEmbeddingHandler, texts: list[str]) -> NDArray[np.float32]:
    answers = serve(handler, [text.encode() for text in texts])
    assert {answer.status for answer in answers} == {200}
    return np.array([answer.body for answer in answers], np.float32)


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ({"engine": "openvino"}, 1e-4),
        ({"engine": "openvino", "precision": "auto"}, 1e-2),
        ({"engine": "torch"}, 1e-4),
        ({"engine": "openvino", "padding": "max_length", "max_items": 3}, 1e-4),
    ],
    ids=["openvino-fp32", "openvino-auto", "torch-fp32", "padded-to-max-length"],
)
def test_embedding_batch_of_mixed_lengths_equals_the_models_own_recipe(
    staged: Path, expected: NDArray[np.float32], settings: dict[str, Any], tolerance: float
) -> None:
    actual = vectors(embedder(staged, **settings), TEXTS)
    assert actual.shape == (len(TEXTS), 384)
    assert np.abs(actual - expected).max() < tolerance
    assert np.linalg.norm(actual, axis=1) == pytest.approx(1, abs=1e-3)


def test_embedding_headlines_on_one_subject_lie_closer(handler: SentenceEmbeddingHandler) -> None:
    headlines = [
        "The central bank left its interest rate unchanged.",
        "Interest rates stay where they are, the bank decides.",
        "Heavy rain is expected across the country tomorrow.",
    ]
    rate, rate_again, weather = vectors(handler, headlines)
    assert rate @ rate_again > 0.6
    assert rate @ weather < 0.2


def test_embedding_any_order_and_neighbours_give_the_same_vector(
    handler: SentenceEmbeddingHandler, expected: NDArray[np.float32]
) -> None:
    order = list(range(len(TEXTS)))
    for seed in range(3):
        random.Random(seed).shuffle(order)
        assert np.abs(vectors(handler, [TEXTS[index] for index in order]) - expected[order]).max() < 1e-4


def test_embedding_canaries_of_bad_rows_reach_nobody(
    handler: SentenceEmbeddingHandler, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [b"canary \xff", b"canary \0", b"canary " * 300, b'{"text": "canary", "top_k": 3}', b'{"canary": 1}']
    rows = [row for index, text in enumerate(TEXTS[:5]) for row in (text.encode(), bad[index])]
    answers = serve(handler, rows)
    assert [answer.status for answer in answers] == [200, 400, 200, 400, 200, 413, 200, 400, 200, 400]
    assert answers[5].body["message"] == "text: 302 tokens; max_length is 256."
    assert "canary" not in json.dumps([answer.body for answer in answers])
    assert "canary" not in caplog.text


def test_embedding_truncation_cuts_what_is_too_long(staged: Path) -> None:
    handler = embedder(staged, truncation=True, max_length=16)
    text = "The central bank kept its interest rate where it was. " * 30
    head = "The central bank kept its interest rate where it was. The central bank"
    cut, whole = vectors(handler, [text, head])
    assert cut @ whole > 0.99


def test_embedding_instances_of_many_lengths_share_few_forward_passes(handler: SentenceEmbeddingHandler) -> None:
    texts = ["word " * count for count in range(1, 61)]
    (answer,) = serve(handler, [json.dumps({"instances": texts}).encode()])
    assert len(answer.body["predictions"]) == 60
    size = int(answer.headers["Server-Timing"].rpartition('"')[0].rpartition('"')[2])
    assert size >= 5


def test_load_max_length_beyond_the_models_own_is_refused(staged: Path) -> None:
    with pytest.raises(InvalidConfig, match="max_length: 300 is more than the model's own 256"):
        embedder(staged, max_length=300)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"sentence_bert_config.json": {"max_seq_length": 128}, "config.json": {"max_position_embeddings": 512}}, 128),
        ({"config.json": {"max_position_embeddings": 512, "model_type": "bert", "pad_token_id": 0}}, 512),
        ({"config.json": {"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1}}, 512),
        ({"config.json": {}, "tokenizer_config.json": {"model_max_length": 10**30}}, None),
        ({"config.json": {"max_position_embeddings": 512}, "tokenizer_config.json": {"model_max_length": 384}}, 384),
    ],
)
def test_token_limit_is_what_the_models_files_say(files: dict[str, Any], limit: int | None, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
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
    ],
)
def test_pooling_is_what_the_models_files_say(
    config: dict[str, Any], pooled: list[list[float]], tmp_path: Path
) -> None:
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    pooling = Pooling.read(tmp_path)
    assert pooling.pool(STATES, MASK).tolist() == pytest.approx(np.array(pooled))
    assert not pooling.is_normalized


@pytest.mark.parametrize(
    "config", [{"pooling_mode_max_tokens": True}, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}]
)
def test_pooling_that_is_not_supported_is_refused(config: dict[str, bool], tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "x.Pooling", "path": ""}]))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidConfig, match="is not supported; supported are"):
        Pooling.read(tmp_path)


def test_initialize_without_a_folder_of_the_checkpoint_is_refused(staged: Path, tmp_path: Path) -> None:
    """As archives of version 0.1 had it, all in the root."""
    shutil.copytree(staged / CHECKPOINT, tmp_path, dirs_exist_ok=True)
    with pytest.raises(InvalidConfig, match="this archive has no checkpoint/, where weights lie; name some, and build"):
        embedder(tmp_path)


def test_stage_for_one_engine_leaves_the_others_model_out(staged: Path, tmp_path: Path) -> None:
    for engine, kept, absent in (
        ("openvino", "model.xml", "checkpoint/model.safetensors"),
        ("torch", "checkpoint/model.safetensors", "model.xml"),
    ):
        folder = tmp_path / engine
        folder.mkdir()
        stage(ENTRY, source(ENTRY, None), engine, folder)  # type: ignore[arg-type]
        assert (folder / kept).is_file()
        assert not (folder / absent).exists()


def test_stage_pickle_is_read_only_when_named_itself(staged: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "checkpoint"
    shutil.copytree(staged / CHECKPOINT, pickled, ignore=shutil.ignore_patterns("model.*"))
    network = transformers.AutoModel.from_pretrained(staged / CHECKPOINT)
    torch.save(network.state_dict(), pickled / "pytorch_model.bin")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(WeightsUnavailable, match="a pickle is read only when --weights names the file itself"):
        stage(ENTRY, Source("folder", str(pickled), ""), "torch", out)
    stage(ENTRY, Source("file", str(pickled / "pytorch_model.bin"), ""), "torch", out)
    assert embedder(out, engine="torch").engine.description == "torch cpu float32"


def test_stage_hub_id_without_network_says_in_one_line_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    origin = source(ENTRY, "an-organisation/a-model-nobody-has")
    assert origin.kind == "hub"
    with pytest.raises(WeightsUnavailable, match=r"cannot fetch an-organisation/a-model-nobody-has .*--weights FOLDER"):
        stage(ENTRY, origin, "auto", tmp_path)


def test_stage_random_weights_are_not_to_be_had(tmp_path: Path) -> None:
    with pytest.raises(WeightsUnavailable, match="no random weights for sentence_embedding"):
        stage(ENTRY, source(ENTRY, "random"), "auto", tmp_path)
