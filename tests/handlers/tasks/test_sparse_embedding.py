"""Weights of words, compared with sentence-transformers' SparseEncoder and with FlagEmbedding's formula for bge-m3."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from deploy.archives.sources import WeightsUnavailable
from handlers.errors import InvalidConfig
from handlers.tasks.sparse_embedding import SparseEmbeddingHandler
from tests import exports, tiny_retrieval
from tests.handlers.serving import serve, started
from tests.handlers.tasks.test_retrieval import ask
from tests.tables import table
from tests.tiny_models import TEXTS

pytestmark = pytest.mark.builds

SIZE = 232  # words of the tiny vocabulary


def start(folder: Path, engine: str = "torch", **settings: Any) -> SparseEmbeddingHandler:
    return started(SparseEmbeddingHandler(), folder, {"precision": "fp32", "threads": 1, "engine": engine, **settings})


def dense(found: Any, size: int = SIZE) -> Any:
    row = np.zeros(size)
    row[found["indices"]] = found["values"]
    assert found["indices"] == sorted(found["indices"]) and min(found["values"], default=1) > 0
    return row


def bodies(texts: Any = TEXTS, **options: Any) -> list[Any]:
    return [{"body": json.dumps({"text": text, **options})} for text in texts]


@table(
    *(("max", "relu", {}), ("sum", "log1p_relu", {}), ("max", "log1p_relu", {"max_active_dims": 9})),
    ("max", "relu", {"is_routed": True}),
)
@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_weights_are_those_of_sparse_encoder_alone_and_together(
    pooling: str, activation: str, more: dict[str, Any], engine: Any, tmp_path: Path
) -> None:
    saved = tiny_retrieval.splade(tmp_path / "weights", pooling, activation, **more)
    (tmp_path / "archive").mkdir()
    handler = start(exports.archived("sparse_embedding", saved, tmp_path / "archive", {}, engine=engine), engine)
    model = import_module("sentence_transformers").SparseEncoder(str(saved), device="cpu", local_files_only=True)
    for kind in (None, "query", "document"):
        encode = getattr(model, f"encode_{kind}" if kind else "encode")
        # One by one: in a batch, padding takes the library's static weight of a "[PAD]" in a text.
        expected = encode([*TEXTS], convert_to_sparse_tensor=False, batch_size=1).numpy()
        asked = bodies(**({"input_type": kind} if kind else {}))
        together = [dense(answer.body) for answer in serve(handler, asked)]
        alone = [dense(serve(handler, [one])[0].body) for one in asked]
        np.testing.assert_allclose(together, expected, atol=2e-5)
        np.testing.assert_allclose(alone, expected, atol=2e-5)
        assert 0 < np.count_nonzero(expected) < expected.size


def expected_by_m3(folder: Path, text: str, size: int) -> Any:
    """FlagEmbedding's formula, BGEM3FlagModel._process_token_weights."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    head = torch.nn.Linear(32, 1)
    head.load_state_dict(torch.load(folder / "sparse_linear.pt", weights_only=True))
    found = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        weights = torch.relu(head(model(**found).last_hidden_state))[0, :, 0].tolist()
    unused = {tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    row = np.zeros(size)
    for index, weight in zip(found["input_ids"][0].tolist(), weights, strict=True):
        if index not in unused:
            row[index] = max(row[index], weight)
    return row


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_weights_of_m3_are_flag_embeddings(engine: Any, tmp_path: Path) -> None:
    saved = tiny_retrieval.m3(tmp_path / "weights")
    (tmp_path / "archive").mkdir()
    handler = start(exports.archived("sparse_embedding", saved, tmp_path / "archive", {}, engine=engine), engine)
    size = handler.model_config.vocab_size
    for text, answer in zip(TEXTS, serve(handler, bodies()), strict=True):
        np.testing.assert_allclose(dense(answer.body, size), expected_by_m3(saved, text, size), atol=2e-5)


@pytest.fixture(scope="module")
def handler(tmp_path_factory: pytest.TempPathFactory) -> SparseEmbeddingHandler:
    folder = tmp_path_factory.mktemp("archive")
    saved = tiny_retrieval.splade(tmp_path_factory.mktemp("weights"))
    return start(exports.archived("sparse_embedding", saved, folder, {}, engine="torch"))


def test_options_limit_weights_and_name_tokens(handler: SparseEmbeddingHandler) -> None:
    (all_,) = serve(handler, bodies(TEXTS[:1]))
    values = np.array(all_.body["values"])
    best = np.sort(np.array(all_.body["indices"])[np.argsort(-values)[:5]])
    (few,) = serve(handler, bodies(TEXTS[:1], top_k=5, return_tokens=True))
    assert few.body["indices"] == best.tolist()
    assert few.body["tokens"] == handler.tokenizer.convert_ids_to_tokens(best.tolist())
    (above,) = serve(handler, bodies(TEXTS[:1], threshold=float(np.median(values))))
    assert above.body["values"] == values[values > np.median(values)].tolist()
    (nothing, wrong) = serve(handler, [*bodies(TEXTS[:1], threshold=1e6), *bodies(TEXTS[:1], top_k=0)])
    assert (nothing.body, wrong.status) == ({"indices": [], "values": []}, 400)


def test_forms_are_those_of_text_embeddings_inference_and_openai(handler: SparseEmbeddingHandler) -> None:
    own = [answer.body for answer in serve(handler, bodies(TEXTS[:2]))]
    pairs = [[{"index": i, "value": v} for i, v in zip(*one.values(), strict=True)] for one in own]
    many, one, named = ask(
        handler, "sparse", {"inputs": [*TEXTS[:2]], "truncate": True}, {"inputs": TEXTS[0]},
        {"inputs": TEXTS[0], "return_tokens": True, "top_k": 1},
    )  # fmt: skip
    (openai,) = ask(handler, "embeddings", {"input": [*TEXTS[:2]], "encoding_format": "base64"})
    for found, wanted in ((many.body, pairs), (one.body, pairs[:1])):
        for row, expected in zip(found, wanted, strict=True):
            assert [each["index"] for each in row] == [each["index"] for each in expected]
            np.testing.assert_allclose([each["value"] for each in row], [each["value"] for each in expected], atol=1e-5)
    assert [*named.body[0][0]] == ["index", "value", "token"]
    assert [each["embedding"]["indices"] for each in openai.body["data"]] == [each["indices"] for each in own]
    tokens = sum(len(each) for each in handler.tokenizer([*TEXTS[:2]])["input_ids"])
    assert openai.body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    bad: list[Any] = [("embeddings", {"inputs": "x"}, "/embed_sparse"), ("cohere-v2", {"texts": ["x"]}, "cohere")]
    bad += [("rerank", {}, "rerank"), ("sparse", {"inputs": "x", "dimensions": 3}, "dimensions: Unexpected")]
    bad += [("sparse", {"inputs": ["x", ""]}, "inputs[1]: empty"), ("sparse", {}, "input: missing")]
    for api, body, words in bad:
        (answer,) = ask(handler, api, body)
        assert answer.status == 400 and words in json.dumps(answer.body), answer.body


def test_not_a_number_is_the_error_of_its_own_item(
    handler: SparseEmbeddingHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = handler.engine.run

    def broken(inputs: Any) -> Any:
        outputs = run(inputs)
        outputs["weights"][0, 3] = np.nan
        return outputs

    monkeypatch.setattr(handler.engine, "run", broken)
    first, second = serve(handler, bodies(["plum cake", "plum cake"]))
    assert [first.status, second.status] == [500, 200]


@table(
    ({"modules.json": [{"type": "sentence_transformers.models.Transformer", "path": ""}]}, "Transformer is not supp"),
    ({"1_SpladePooling/config.json": {"pooling_strategy": "mean"}}, "SpladePooling: mean, relu is not supported"),
    ({"router_config.json": {"types": {}, "structure": {"query": []}}}, "only the routes query"),
)
def test_folder_with_other_modules_is_rejected_in_one_line(files: dict[str, Any], words: str, tmp_path: Path) -> None:
    saved = tiny_retrieval.splade(tmp_path / "weights")
    for name, content in files.items():
        (saved / name).write_text(json.dumps(content))
    (tmp_path / "archive").mkdir()
    with pytest.raises((InvalidConfig, WeightsUnavailable), match=words):
        exports.archived("sparse_embedding", saved, tmp_path / "archive", {}, engine="torch")
