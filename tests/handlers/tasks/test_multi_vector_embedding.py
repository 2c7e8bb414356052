"""A vector for each token, compared with sentence-transformers' MultiVectorEncoder and FlagEmbedding's bge-m3."""

import base64
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from handlers.errors import InvalidConfig
from handlers.tasks.multi_vector_embedding import MultiVectorEmbeddingHandler
from tests import exports, tiny_retrieval
from tests.handlers.serving import serve, started
from tests.handlers.tasks.test_retrieval import ask
from tests.oracle import assert_order
from tests.tables import table
from tests.tiny_models import LIMIT, TEXTS

pytestmark = pytest.mark.builds

LONG = (*TEXTS, "the river rose, the mayor burned it. " * LIMIT)
PYLATE = {"query_prefix": "[Q] ", "document_prefix": "##a ", "document_length": 40, "query_length": 16}
# Model -> the function that writes it, and its settings.
MODELS: dict[str, Any] = {
    "plain": (tiny_retrieval.late, {}),
    "fixed": (tiny_retrieval.late, {"expansion": {"strategy": "fixed", "attend": False, "length": 24}}),
    "least": (tiny_retrieval.late, {"expansion": {"strategy": "min", "attend": True, "token": "a", "length": 24}}),
    "lengths": (tiny_retrieval.late, {"query_length": 8, "document_length": 12}),
    "pylate": (tiny_retrieval.pylate, PYLATE),
    "attending": (tiny_retrieval.pylate, {**PYLATE, "attend_to_expansion_tokens": True, "skiplist_words": ["x"]}),
    "unexpanded": (tiny_retrieval.pylate, {**PYLATE, "do_query_expansion": False}),
}


def make(folder: Path, saved: Path, engine: Any = "torch", **settings: Any) -> MultiVectorEmbeddingHandler:
    archive = exports.archived("multi_vector_embedding", saved, folder, {}, engine=engine)
    settings = {"precision": "fp32", "threads": 1, "engine": engine, **settings}
    return started(MultiVectorEmbeddingHandler(), archive, settings)


def bodies(texts: Any, **options: Any) -> list[Any]:
    return [{"body": json.dumps({"text": text, **options})} for text in texts]


# The graphs of the others are equal to one of these.
@table(*((name, "torch") for name in MODELS), *((name, "openvino") for name in ("fixed", "least", "pylate")))
def test_vectors_are_those_of_multi_vector_encoder_alone_and_together(name: str, engine: Any, tmp_path: Path) -> None:
    write, settings = MODELS[name]
    saved = write(tmp_path / "weights", **settings)
    (tmp_path / "archive").mkdir()
    handler = make(tmp_path / "archive", saved, engine)
    model = import_module("sentence_transformers").MultiVectorEncoder(str(saved), device="cpu", local_files_only=True)
    for kind in (None, "query", "document"):
        encode = getattr(model, f"encode_{kind}" if kind else "encode")
        expected = [each.numpy() for each in encode([*LONG], convert_to_numpy=False)]
        asked = bodies(LONG, **({"input_type": kind} if kind else {}))
        together = serve(handler, asked)
        alone = [serve(handler, [one])[0] for one in asked]
        for answers in (together, alone):
            for answer, wanted in zip(answers, expected, strict=True):
                assert answer.status == 200, answer.body
                np.testing.assert_allclose(np.array(answer.body).reshape(wanted.shape), wanted, atol=2e-5)


def expected_by_m3(folder: Path, texts: Any) -> list[Any]:
    """FlagEmbedding's formula: every token but the first, as BGEM3FlagModel._process_colbert_vecs."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    head = torch.nn.Linear(32, 32)
    head.load_state_dict(torch.load(folder / "colbert_linear.pt", weights_only=True))
    found = []
    for text in texts:
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
            found.append(torch.nn.functional.normalize(head(states[1:]), dim=-1).numpy())
    return found


def test_vectors_of_m3_are_flag_embeddings_and_its_scores_their_mean(tmp_path: Path) -> None:
    saved = tiny_retrieval.m3(tmp_path / "weights")
    (tmp_path / "archive").mkdir()
    handler = make(tmp_path / "archive", saved)
    expected = expected_by_m3(saved, TEXTS)
    for answer, wanted in zip(serve(handler, bodies(TEXTS)), expected, strict=True):
        np.testing.assert_allclose(answer.body, wanted, atol=2e-5)
    (ranked,) = ask(handler, "rerank", {"query": TEXTS[0], "documents": [*TEXTS[1:]]})
    scores = {each["index"]: each["relevance_score"] for each in ranked.body["results"]}
    wanted = [float((expected[0] @ each.T).max(1).mean()) for each in expected[1:]]
    np.testing.assert_allclose([scores[at] for at in range(len(wanted))], wanted, atol=2e-5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_retrieval.pylate(tmp_path_factory.mktemp("weights"), **PYLATE)


@pytest.fixture(scope="module")
def handler(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> MultiVectorEmbeddingHandler:
    return make(tmp_path_factory.mktemp("archive"), saved)


def test_pooling_has_vllms_form_in_numbers_or_bytes(handler: MultiVectorEmbeddingHandler) -> None:
    own = [np.array(answer.body) for answer in serve(handler, bodies(TEXTS[:3]))]
    packed = {"input": [*TEXTS[:3]], "encoding_format": "base64"}
    floats, singles, halves = ask(
        handler, "pooling", {"input": [*TEXTS[:3]], "task": "token_embed"}, packed, {**packed, "embed_dtype": "float16"}
    )
    assert [(each["index"], each["object"]) for each in floats.body["data"]] == [(at, "pooling") for at in range(3)]
    for answer, dtype, tolerance in ((singles, "<f4", 1e-5), (halves, "<f2", 1e-3)):
        for each, wanted in zip(answer.body["data"], own, strict=True):
            found = np.frombuffer(base64.b64decode(each["data"]), dtype)
            assert each["shape"] == [*wanted.shape]
            np.testing.assert_allclose(found.reshape(wanted.shape), wanted, atol=tolerance)
    for each, wanted in zip(floats.body["data"], own, strict=True):
        np.testing.assert_allclose(each["data"], wanted, atol=1e-5)
    assert floats.body["usage"]["prompt_tokens"] > sum(map(len, own))
    for body, words in (
        ({"input": "x", "task": "classify"}, "task: must be token_embed"),
        ({"input": "x", "embed_dtype": "fp8"}, "embed_dtype float32 or float16"),
        ({"input": ["x", ""]}, "input[1]: empty"),
    ):
        (answer,) = ask(handler, "pooling", body)
        assert answer.status == 400 and words in answer.body["error"]["message"], answer.body


def test_rerank_has_the_scores_of_maxsim(handler: MultiVectorEmbeddingHandler, saved: Path) -> None:
    model = import_module("sentence_transformers").MultiVectorEncoder(str(saved), device="cpu", local_files_only=True)
    query, documents = model.encode_query(["Who wrote the letter?"]), model.encode_document([*TEXTS])
    expected = model.similarity(query, documents)[0].numpy()
    asked = {"query": "Who wrote the letter?", "documents": [*TEXTS], "return_documents": True}
    (answer,) = ask(handler, "rerank", asked)
    scores = {each["index"]: each["relevance_score"] for each in answer.body["results"]}
    np.testing.assert_allclose([scores[at] for at in range(len(TEXTS))], expected, atol=1e-4)
    assert_order([*scores.values()], 0)
    assert all(each["document"]["text"] == TEXTS[each["index"]] for each in answer.body["results"])
    for body, param, words in (
        ({"query": "", "documents": ["x"]}, "query", "query: empty"),
        ({"query": "x", "documents": ["x", ""]}, "documents", "documents[1]: empty"),
        ({"query": "x", "texts": ["x"]}, "texts", "send `documents`"),
    ):
        (bad,) = ask(handler, "rerank", body)
        error = bad.body["error"]
        assert (bad.status, error["param"]) == (400, param) and words in error["message"], error


@table(
    ({"config.json": {"architectures": ["HF_ColBERT"]}}, "save the model with MultiVectorEncoder"),
    ({"modules.json": [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": ""}]}, "Transformer, Pool"),
)
def test_folder_of_another_layout_is_rejected_in_one_line(files: dict[str, Any], words: str, tmp_path: Path) -> None:
    saved = tiny_retrieval.late(tmp_path / "weights")
    for name, content in files.items():
        old = json.loads((saved / name).read_text())
        (saved / name).write_text(json.dumps({**old, **content} if isinstance(old, dict) else content))
    (tmp_path / "archive").mkdir()
    with pytest.raises(InvalidConfig, match=words):
        exports.archived("multi_vector_embedding", saved, tmp_path / "archive", {}, engine="torch")
