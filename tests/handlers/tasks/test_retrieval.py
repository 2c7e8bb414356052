"""Embeddings and reranking in the forms of OpenAI, Cohere and Jina, compared with sentence-transformers."""

import base64
import json
import re
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.util.quantization import quantize_embeddings

from handlers.errors import InvalidConfig
from tests.handlers.serving import Answer, Made, Patch, serve
from tests.handlers.tasks.test_encoders import Handler, pooled, start
from tests.oracle import assert_order
from tests.tables import table
from tests.tiny_models import LIMIT, TEXTS

SIZE = 32
PROMPTS = {"prompts": {"query": "the river ", "passage": "the letter "}, "default_prompt_name": None}
EMBEDDER: dict[str, Any] = {"task": "sentence_embedding", "kind": "bert", "matryoshka_dimensions": [4, 8]}
EMBEDDER["files"] = {"config_sentence_transformers.json": PROMPTS}
NORMALIZED = {"task": "sentence_embedding", "kind": "roberta", "files": pooled(pooling_mode_mean_tokens=True)}
RERANKER: dict[str, Any] = {"task": "reranking", "kind": "bert", "labels": ("relevance",)}
QUERY = "Who wrote the letter?"


def library(name: str, handler: Handler) -> Any:
    """Return the model of a handler in a class of sentence-transformers, whose import takes a second."""
    made = getattr(import_module("sentence_transformers"), name)
    return made(str(handler.archive.checkpoint_dir), device="cpu", local_files_only=True)


def ask(handler: Any, api: str, *documents: Any) -> list[Answer]:
    bodies = [each if isinstance(each, bytes) else json.dumps({"model": "m", **each}).encode() for each in documents]
    return serve(handler, [{"body": body} for body in bodies], [{"x-api": api} for _ in bodies])


def vectors(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    assert [each["index"] for each in answer.body["data"]] == [*range(len(answer.body["data"]))]
    return np.array([each["embedding"] for each in answer.body["data"]])


def assert_rejected(handler: Any, api: str, good: Any, bad: list[tuple[Any, int, str | None, str]]) -> None:
    """Send bad documents between good ones: each has its own error in OpenAI's form, and the good ones are unharmed."""
    (alone,) = ask(handler, api, good)
    first, *answers, last = ask(handler, api, good, *(body for body, *_ in bad), good)
    for answer, (body, status, param, words) in zip(answers, bad, strict=True):
        error = answer.body["error"]
        assert (answer.status, error["param"], error["type"]) == (status, param, "invalid_request_error"), body
        assert words in error["message"], error["message"]
    for answer in (first, last):
        if api == "embeddings":
            np.testing.assert_allclose(vectors(answer), vectors(alone), atol=1e-5)
        else:
            found, wanted = ([each["index"] for each in one.body["results"]] for one in (answer, alone))
            assert (answer.status, found) == (200, wanted)


def test_embeddings_are_those_of_our_own_form_in_numbers_or_base64_and_their_tokens_counted(tiny_archive: Made) -> None:
    handler = start(tiny_archive, EMBEDDER)
    own = np.array([answer.body for answer in serve(handler, list(TEXTS))])
    all_, first = {"input": [*TEXTS]}, {"input": TEXTS[0]}
    ways = [first, {**all_, "encoding_format": "float", "user": "u"}, {**all_, "encoding_format": "base64"}]
    ways.append({**first, "encoding_format": None, "dimensions": None, "input_type": None})
    ways += [{"inputs": [*TEXTS]}, {"inputs": TEXTS[0], "normalize": False}]
    one, many, packed, nulls, scaled, raw = ask(handler, "embeddings", *ways)
    unit = own / np.linalg.norm(own, axis=1, keepdims=True)
    for found, wanted in ((scaled.body, unit), (raw.body, own[:1]), (vectors(many), own), (vectors(one), own[:1])):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert vectors(nulls).tolist() == vectors(one).tolist()
    decoded = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in packed.body["data"]]
    np.testing.assert_allclose(decoded, vectors(many), atol=1e-6)
    tokens = sum(len(ids) for ids in handler.tokenizer([*TEXTS])["input_ids"])
    assert many.body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert many.headers["X-Tokens"] == str(tokens)
    assert (many.body["object"], many.body["model"], many.body["data"][0]["object"]) == ("list", "model", "embedding")


def test_dimensions_are_cut_and_then_scaled_to_unit_length_as_the_archive_allows(tiny_archive: Made) -> None:
    declared = start(tiny_archive, EMBEDDER)
    whole, cut = ask(declared, "embeddings", {"input": [*TEXTS]}, {"input": [*TEXTS], "dimensions": 8})
    expected = vectors(whole)[:, :8]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors(cut), expected, atol=1e-5)
    plain = {**EMBEDDER, "matryoshka_dimensions": None}
    allowed, undeclared = start(tiny_archive, plain, is_matryoshka=True), start(tiny_archive, plain)
    assert vectors(ask(allowed, "embeddings", {"input": "x", "dimensions": 5})[0]).shape == (1, 5)
    assert vectors(ask(undeclared, "embeddings", {"input": "x", "dimensions": SIZE})[0]).shape == (1, SIZE)
    (rejected,) = ask(undeclared, "embeddings", {"input": "x", "dimensions": 8})
    assert (rejected.status, rejected.body["error"]["param"]) == (400, "dimensions")


@table(
    *(({"input_type": "search_query"}, "the river "), ({"input_type": "document"}, "the letter ")),
    *(({"task": "retrieval.query"}, "the river "), ({"prompt_name": "passage"}, "the letter "), ({}, "")),
    ({"embedding_type": ["float"], "late_chunking": False, "truncate": False}, ""),  # Jina
    ({"encoding_type": "float"}, ""),  # LlamaIndex's JinaEmbedding
    ({"output_dimension": SIZE, "output_dtype": "float", "truncation": False}, ""),  # Voyage
)
def test_prompts_are_those_of_the_models_files(asked: dict[str, Any], prompt: str, tiny_archive: Made) -> None:
    handler = start(tiny_archive, EMBEDDER)
    prompted, by_hand = ask(handler, "embeddings", {"input": TEXTS[0], **asked}, {"input": prompt + TEXTS[0]})
    np.testing.assert_allclose(vectors(prompted), vectors(by_hand), atol=1e-6)


def test_white_space_has_the_librarys_vector_and_unit_length_may_be_asked_for(tiny_archive: Made) -> None:
    handler, texts = start(tiny_archive, NORMALIZED, truncation=True), ["x", " ", "\n"]
    (answer,) = ask(handler, "embeddings", {"input": texts, "normalized": True, "truncation": True})
    np.testing.assert_allclose(vectors(answer), library("SentenceTransformer", handler).encode(texts), atol=1e-5)


def test_token_ids_are_taken_as_they_are_or_rejected_as_the_archive_says(tiny_archive: Made) -> None:
    own = start(tiny_archive, EMBEDDER, **{"token_ids": "own"})
    ids = own.tokenizer([*TEXTS[:2]])["input_ids"]
    texts, many, one = ask(own, "embeddings", {"input": [*TEXTS[:2]]}, {"input": ids}, {"input": ids[0]})
    np.testing.assert_allclose(vectors(many), vectors(texts), atol=1e-6)
    np.testing.assert_allclose(vectors(one), vectors(texts)[:1], atol=1e-6)
    assert many.body["usage"] == texts.body["usage"]
    (outside,) = ask(own, "embeddings", {"input": [ids[0], [100_000]]})
    assert (outside.status, outside.body["error"]["message"][:9]) == (400, "input[1]:")
    (rejected,) = ask(start(tiny_archive, EMBEDDER), "embeddings", {"input": [[15339, 1917], [65]]})
    assert (rejected.status, rejected.body["error"]["param"]) == (400, "input")
    assert "check_embedding_ctx_length=False" in rejected.body["error"]["message"]


RANGES = [[-2.0] * SIZE, [2.0 + each / SIZE for each in range(SIZE)]]


@pytest.mark.parametrize("ranges", [RANGES, [-1.0, 1.5]])
def test_bytes_and_bits_are_those_of_sentence_transformers(tiny_archive: Made, ranges: Any) -> None:
    handler = start(tiny_archive, EMBEDDER, int8_ranges=ranges)
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    asked = {"texts": [*TEXTS], "input_type": "search_query", "embedding_types": types}
    (answer,) = ask(handler, "cohere-v2", asked)
    (floats,) = ask(handler, "embeddings", {"input": [*TEXTS], "input_type": "query"})
    found, expected = answer.body["embeddings"], vectors(floats).astype(np.float32)
    np.testing.assert_allclose(found["float"], expected, atol=1e-5)
    exact: Any = np.array(found["float"], np.float32)
    bounds = np.array([np.broadcast_to(np.float32(each), SIZE) for each in ranges])
    for kind in types[1:5]:
        wanted: Any = quantize_embeddings(exact, kind, ranges=bounds)  # type: ignore[arg-type]
        assert found[kind] == wanted.tolist(), kind
        (voyage,) = ask(handler, "embeddings", {"input": [*TEXTS], "output_dtype": kind, "encoding_format": "base64"})
        decoded = np.frombuffer(base64.b64decode(voyage.body["data"][0]["embedding"]), wanted.dtype)
        assert decoded.shape == wanted[0].shape
    assert np.ptp(found["uint8"]) > 50
    assert [np.frombuffer(base64.b64decode(each), "<f4").tolist() for each in found["base64"]] == exact.tolist()
    tokens = floats.body["usage"]["total_tokens"]
    assert answer.body["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": tokens}}
    assert (answer.body["texts"], answer.body["response_type"]) == ([*TEXTS], "embeddings_by_type")


def test_coheres_texts_are_cut_unless_its_client_rejects(tiny_archive: Made) -> None:
    handler, long = start(tiny_archive, EMBEDDER), "Anna Berg " + "the river rose " * LIMIT + "mayor"
    left = {"truncation": True, "truncation_side": "left"}
    cut: dict[str, dict[str, Any]] = {"START": left, "END": {"truncate": True}}
    for way, own in cut.items():
        (answer,) = ask(handler, "cohere-v1", {"texts": [long], "truncate": way, "max_tokens": 20})
        (expected,) = ask(handler, "embeddings", {"input": long, **own, "truncate_prompt_tokens": 20})
        np.testing.assert_allclose(answer.body["embeddings"], vectors(expected), atol=1e-6)
        assert expected.body["usage"]["total_tokens"] == 20
    (tei,) = ask(handler, "embeddings", {"inputs": long, "truncate": True, "truncation_direction": "Left"})
    (own_left,) = ask(handler, "embeddings", {"inputs": long, **left})
    assert (tei.status, tei.body) == (200, own_left.body)
    (whole,) = ask(handler, "cohere-v2", {"texts": [long]})
    assert (whole.status, whole.body["meta"]["billed_units"]) == (200, {"input_tokens": LIMIT})


DOCUMENTS = [*TEXTS, "the mayor burned the letter and the river rose " * 40]
# A cross-encoder's files, as sentence-transformers 6 and older ones write them: activations, a prompt, a length.
IDENTITY = "torch.nn.modules.linear.Identity"
PROMPT: dict[str, Any] = {"model_type": "CrossEncoder", "activation_fn": IDENTITY}
PROMPT |= {"prompts": {"query": "the river "}, "default_prompt_name": "query"}
MODULES = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]
TRANSFORMER: dict[str, Any] = {"transformer_task": "sequence-classification", "module_output_name": "scores"}
TRANSFORMER["modality_config"] = {"text": {"method": "forward", "method_output_name": "logits"}}
CUT = {**TRANSFORMER, "processing_kwargs": {"text": {"max_length": 48}}}
SAVED = {"modules.json": MODULES, "sentence_bert_config.json": TRANSFORMER, "config_sentence_transformers.json": PROMPT}
CROSS_ENCODERS: dict[str, dict[str, Any]] = {
    "sigmoid": {},
    "older": {"sbert_ce_default_activation_function": IDENTITY},
    "newer": {"sentence_transformers": {"activation_fn": IDENTITY, "version": "5.0.0"}},
    "prompt": {"files": SAVED},
    # The library reads them only beside modules.json.
    "bare": {"files": {"config_sentence_transformers.json": PROMPT, "sentence_bert_config.json": CUT}},
    "length": {"files": {**SAVED, "sentence_bert_config.json": CUT}},
}


@pytest.mark.parametrize("name", CROSS_ENCODERS)
def test_scores_are_those_of_sentence_transformers_cross_encoder(tiny_archive: Made, name: str) -> None:
    handler: Any = start(tiny_archive, {**RERANKER, **CROSS_ENCODERS[name]})
    is_raw, tei = name in ("older", "newer", "prompt", "length"), {"query": QUERY, "texts": DOCUMENTS}
    asked = ({"query": QUERY, "documents": DOCUMENTS}, tei, {**tei, "raw_scores": is_raw})
    answer, *others = ask(handler, "rerank", *asked)
    expected = library("CrossEncoder", handler).predict([(QUERY, each) for each in DOCUMENTS])
    assert answer.status == 200, answer.body
    scores = {each["index"]: each["relevance_score"] for each in answer.body["results"]}
    np.testing.assert_allclose([scores[index] for index in range(len(DOCUMENTS))], expected, atol=1e-4)
    assert [*scores.values()] == sorted(scores.values(), reverse=True)
    assert (np.ptp(expected) > 0.05) and all("document" not in each for each in answer.body["results"])
    # TEI's scores are sigmoids, unless the client asks for logits.
    for other, wanted in zip(others, (1 / (1 + np.exp(-expected)) if is_raw else expected, expected), strict=True):
        assert [each["index"] for each in other.body] == [*scores]
        np.testing.assert_allclose([each["score"] for each in other.body], wanted[[*scores]], atol=1e-4)
    queries, most = [handler.prompt + QUERY] * len(DOCUMENTS), 48 if name == "length" else LIMIT
    pairs = handler.tokenizer(queries, DOCUMENTS, truncation=True, max_length=most)["input_ids"]
    assert answer.body["usage"]["total_tokens"] == sum(map(len, pairs))


def test_reranker_has_one_label_and_an_activation_of_torch(tiny_archive: Made) -> None:
    with pytest.raises(InvalidConfig, match="6 labels"):
        start(tiny_archive, {**RERANKER, "labels": tuple("abcdef")})
    trusted: Any = start(tiny_archive, {**RERANKER, "sbert_ce_default_activation_function": "os.system"})
    assert trusted.activation(np.array([0.0], np.float32)) == [0.5]


def test_documents_are_repeated_and_the_best_kept_where_that_is_asked_for(tiny_archive: Made) -> None:
    handler = start(tiny_archive, RERANKER)
    ways: list[dict[str, Any]] = [
        {"documents": [*TEXTS], "top_n": None, "max_tokens_per_doc": 4096},
        {"documents": [{"text": each} for each in TEXTS], "top_n": 3, "return_documents": True},
        {"documents": [*TEXTS], "top_k": 3, "truncation": True},
        {"texts": [*TEXTS], "return_text": True, "raw_scores": False, "truncate": True},
    ]
    plain, asked, voyage, tei = ask(handler, "rerank", *({"query": QUERY, **each} for each in ways))
    # Another micro-batch moves a score in fp32 by 1e-6.
    assert_order([each["relevance_score"] for each in plain.body["results"]], 1e-5)
    best = [each["index"] for each in plain.body["results"]]
    assert len(best) == len(TEXTS)
    texts = [(index, TEXTS[index]) for index in best]
    assert [(each["index"], each["document"]["text"]) for each in asked.body["results"]] == texts[:3]
    assert [each["index"] for each in voyage.body["results"]] == best[:3]
    # Voyage's client sends `top_k` only if its user does.
    assert all(each.body["data"] == each.body["results"] for each in (plain, voyage)) and "data" not in asked.body
    assert [(each["index"], each["text"]) for each in tei.body] == texts
    expected = [each["relevance_score"] for each in plain.body["results"]]
    np.testing.assert_allclose([each["score"] for each in tei.body], expected, atol=1e-5)
    (own,) = serve(handler, [{"body": {"query": QUERY, "instances": [{"document": each} for each in TEXTS]}}])
    scores = [each["score"] for each in own.body["predictions"]]
    assert sorted(range(len(scores)), key=lambda index: -scores[index]) == best


def test_text_classification_takes_pairs_beside_single_texts(tiny_archive: Made) -> None:
    handler = start(tiny_archive, {**RERANKER, "task": "text_classification"})
    rows = [{"body": {"text": QUERY, "text_pair": TEXTS[0]}}, {"body": {"text": QUERY}}, QUERY]
    pair, alone, again = (answer.body[0]["score"] for answer in serve(handler, rows))
    assert pair == pytest.approx(library("CrossEncoder", handler).predict([(QUERY, TEXTS[0])])[0], abs=1e-3)
    assert alone == pytest.approx(again, abs=1e-5)
    assert abs(alone - pair) > 1e-3


BAD: dict[str, list[tuple[Any, int, str | None, str]]] = {
    "embeddings": [
        ({"input": "x", "output_dimension": 4, "dimensions": 8}, 400, "output_dimension", "differs from dimensions"),
        ({"input": "x", "output_dimension": 5}, 400, "output_dimension", "output_dimension: must be one of 4, 8"),
        ({"input": "x", "output_dtype": "int8"}, 400, "output_dtype", "output_dtype: int8 and uint8 need ranges"),
        (b'{"input": "x", "model": "a", "mod\\u0065l": "b"}', 400, "model", "model: the body has it twice"),
        ({"input": "x", "embedding_type": ["float", "base64"]}, 400, "embedding_type", "embedding_type: must be"),
        ({"input": "x", "prompt_name": "no"}, 400, "prompt_name", "not a prompt of this model; it has query, p"),
        ({"input": ["x", "the river rose " * LIMIT]}, 413, "input", "input[1]: 578 tokens; max_length is 192"),
        ({"input": "x", "truncation": "no"}, 400, "truncation", "truncation: Input should be a valid boolean"),
        ({"input": "x", "output_dtype": "int4"}, 400, "output_dtype", "output_dtype: must be one of float"),
        ({"inputs": "x", "normalize": False, "dimensions": 8}, 400, "normalize", "normalize: must be true"),
        ({"input": "x", "truncate": "NONE"}, 400, "truncate", "truncate: Input should be a valid boolean"),
        ({"input": "x", "truncate_prompt_tokens": 193}, 400, "truncate_prompt_tokens", "193; at most 192"),
        ({"input": ["x", "x"], "dimensions": 5}, 400, "dimensions", "dimensions: must be one of 4, 8"),
        ({"input": "x", "encoding_format": "x"}, 400, "encoding_format", "encoding_format: must be"),
        ({"input": ["x"] * 10_000}, 413, "input", "input: 10000 items; max_request_items is 2048"),
        ({"input": "x", "late_chunking": True}, 400, "late_chunking", "late_chunking: must be false; the archive"),
        ({"input": {"image": "x"}}, 400, "input", 'input: must be a string or {"text": ...}'),
        ({"input": "x", "normalized": True}, 400, "normalized", "normalized: Unexpected"), (b"", 400, None, "empty"),
        ({"input": "x", "modality": "image"}, 400, "modality", "modality: must be text"),
        ({"inputs": "x", "normalize": 0}, 400, "normalize", "normalize: must be true"),
        ({"inputs": ["x", ""], "truncate": False}, 400, "inputs", "inputs[1]: empty"),
        ({"input": ["x", 1.5]}, 400, "input", "input[1]: must be a string"), ({}, 400, "input", "input: missing"),
        ({"input": "x", "stop": "x"}, 400, "stop", "stop: Unexpected"), (b"{", 400, None, "not valid JSON"),
        ({"inputs": []}, 400, "inputs", "inputs: must not be empty"),
        ({"input": []}, 400, "input", "input: must not be empty"), ({"input": "x", "task": "x"}, 400, "task", "task: "),
        ({"input": ["x", ""]}, 400, "input", "input[1]: empty"),
    ],
    "rerank": [
        ({"query": "x", "documents": ["x"], "max_tokens_per_doc": 9}, 400, "max_tokens_per_doc", "max_tokens_per_doc"),
        ({"query": "x", "documents": ["x"], "return_documents": 1}, 400, "return_documents", "return_documents: "),
        ({"query": "x", "documents": ["x", {"title": "x"}]}, 400, "documents", "documents[1]: must be a string"),
        ({"query": "x", "documents": ["x " * 200], "truncation": False}, 413, "documents", "max_length is 192"),
        ({"query": "x", "texts": ["x"], "raw_scores": True}, 400, "raw_scores", "raw_scores: must be false"),
        ({"query": "x", "documents": ["x"], "rank_fields": ["title"]}, 400, "rank_fields", "rank_fields: "),
        ({"query": "x", "documents": "x"}, 400, "documents", "documents: must be a list"),
        ({"query": "x", "documents": ["x"], "top_n": -1}, 400, "top_n", "top_n: must be"),
        ({"query": "x", "documents": ["x"], "top_k": 0}, 400, "top_k", "top_k: must be"),
        ({"query": "x", "texts": ["x", ""]}, 400, "texts", "texts[1]: empty"),
        ({"query": "x"}, 400, "documents", "documents: missing"),
        ({"documents": ["x"]}, 400, "query", "query: missing"),
    ],
}  # fmt: skip
BAD_COHERE: list[tuple[Any, int, str]] = [
    ({}, 400, "texts: must be a list; send one of texts, images, inputs"),
    *(({"texts": ["x", ""]}, 400, "texts[1]: empty"), ({"texts": ["x"], "images": ["x"]}, 400, "send one of")),
    ({"images": ["data:image/png;base64,x"]}, 400, 'images[0]: must be a string or {"text": ...}'),
    ({"inputs": [{"content": [{"type": "text", "text": "x"}] * 2}]}, 400, "a vector has one of them"),
    ({"texts": ["x"], "embedding_types": ["int4"]}, 400, "embedding_types: must be a list of float"),
    ({"texts": ["x"], "embedding_types": ["uint8"]}, 400, "embedding_types: int8 and uint8 need ranges"),
    ({"texts": ["x"], "truncate": True}, 400, "truncate: must be NONE, START, END"),
    ({"texts": ["x " * 200], "truncate": "NONE"}, 413, "texts[0]: 202 tokens; max_length is 192"),
    ({"texts": ["x"], "max_tokens": 2000}, 400, "max_tokens: 2000; at most 192"),
    ({"texts": ["x"], "output_dimension": 5}, 400, "output_dimension: must be one of 4, 8"),
]


def test_bad_input_is_rejected_in_coheres_form(tiny_archive: Made) -> None:
    answers = ask(start(tiny_archive, EMBEDDER), "cohere-v2", *(body for body, *_ in BAD_COHERE))
    for answer, (body, status, words) in zip(answers, BAD_COHERE, strict=True):
        assert (answer.status, [*answer.body]) == (status, ["message"]), body
        assert words in answer.body["message"], answer.body
    with pytest.raises(InvalidConfig, match="int8_ranges: each list must have 32 numbers"):
        start(tiny_archive, EMBEDDER, int8_ranges=[[0.0], [1.0, 2.0]])
    with pytest.raises(InvalidConfig, match="int8_ranges: each least value"):
        start(tiny_archive, EMBEDDER, int8_ranges=[1.0, 0.0])


@pytest.mark.parametrize("api", BAD)
def test_bad_input_is_rejected_in_openais_form(tiny_archive: Made, api: str) -> None:
    handler = start(tiny_archive, {"embeddings": EMBEDDER, "rerank": RERANKER}[api])
    good = {"input": TEXTS[0]} if api == "embeddings" else {"query": QUERY, "documents": [*TEXTS]}
    assert_rejected(handler, api, good, BAD[api])


def test_api_that_the_model_does_not_serve_is_rejected(tiny_archive: Made, monkeypatch: Patch) -> None:
    handler = start(tiny_archive, EMBEDDER)
    (ranked,) = ask(handler, "rerank", {"query": "x", "documents": ["x"]})
    (other,) = ask(handler, "chat", {"messages": []})
    (packed,) = serve(handler, [{"body": b"\x1f\x8b"}], [{"X-Api": "embeddings", "Content-Encoding": "gzip"}])
    assert [answer.status for answer in (ranked, other, packed)] == [400, 400, 415]
    assert (ranked.body["error"]["param"], ranked.body["error"]["code"]) == ("model", "InvalidBody")
    # A failure of the server says whether to send again.
    monkeypatch.setattr(handler, "split", lambda outputs, _: [row * np.nan for row in outputs["embeddings"]])
    (answer,) = ask(handler, "embeddings", {"input": ["x"]})
    assert (answer.status, answer.headers["X-Should-Retry"]) == (500, "false")
    assert answer.body["error"]["type"] == "server_error"


def test_client_of_another_vector_space_is_rejected_and_each_response_names_its_own(tiny_archive: Made) -> None:
    handler = start(tiny_archive, EMBEDDER)
    own = str(handler.archive.metadata.vector_space)
    assert re.fullmatch("[0-9a-f]{16}-fp32", own)
    body = json.dumps({"model": "m", "input": TEXTS[0]}).encode()
    spaces: list[dict[str, str]] = [{}, {"X-Vector-Space": own}, {"X-Vector-Space": "other"}]
    sent = [*({**each, "X-Api": "embeddings"} for each in spaces), *spaces]
    answers = serve(handler, [{"body": body}] * 3 + [{"body": TEXTS[0].encode()}] * 3, sent)
    assert [answer.status for answer in answers] == [200, 200, 409] * 2
    assert {answer.headers["X-Vector-Space"] for answer in answers} == {own}
    openai, native = answers[2], answers[5]
    assert (openai.body["error"]["param"], openai.headers["X-Should-Retry"]) == (None, "false")
    assert native.body["type"] == "OtherVectorSpace" and own in native.body["message"]


@table(
    ("modules.json", {"files": pooled(pooling_mode_cls_token=True)}, False),
    ("prompts", {"files": {"config_sentence_transformers.json": {"prompts": {"query": "q "}}}}, False),
    ("architecture", {"num_hidden_layers": 1}, False),
    ("a version", {"files": {"config_sentence_transformers.json": {"__version__": {"transformers": "4"}}}}, True),
)
def test_vector_space_changes_with_all_that_changes_a_vector(
    name: str, more: dict[str, Any], is_equal: bool, tiny_archive: Made
) -> None:
    plain: dict[str, Any] = {"task": "sentence_embedding", "kind": "bert"}
    plain |= {"files": {"config_sentence_transformers.json": {}}} if name == "a version" else {}
    first, second = (start(tiny_archive, each).archive.metadata.vector_space for each in (plain, {**plain, **more}))
    assert (first == second) == is_equal


@pytest.mark.parametrize("kind", [None, "query"])
def test_long_text_is_the_mean_of_its_windows_weighted_by_their_tokens(tiny_archive: Made, kind: str | None) -> None:
    files: dict[str, Any] = {**pooled(pooling_mode_mean_tokens=True), "config_sentence_transformers.json": PROMPTS}
    model = {**NORMALIZED, "files": files}
    handler, text = start(tiny_archive, model, long_text="mean"), "the river rose; " * LIMIT
    prompt = "the river " if kind else ""
    tokenizer, network = handler.tokenizer, library("SentenceTransformer", handler)
    whole = tokenizer(prompt + text)["input_ids"]
    head = len(tokenizer(prompt.rstrip())["input_ids"]) - 1  # without the end; the space is in the next token
    room, shared = LIMIT - head - 1, LIMIT // 4
    parts = [whole[at : min(at + room, len(whole) - 1)] for at in range(head, len(whole) - 1 - shared, room - shared)]
    states = [network[0].auto_model(torch.tensor([[*whole[:head], *part, whole[-1]]]))[0][0] for part in parts]
    rows = torch.nn.functional.normalize(torch.stack([each.mean(0) for each in states]), dim=1).detach().numpy()
    expected = np.average(rows, axis=0, weights=[len(part) for part in parts])
    asked = {"input": [TEXTS[0], text, TEXTS[1]], **({"input_type": kind} if kind else {})}
    (answer,), (short,) = ask(handler, "embeddings", asked), ask(start(tiny_archive, model), "embeddings", asked)
    assert (len(parts) > 2, short.status) == (True, 413)
    found = vectors(answer)
    np.testing.assert_allclose(found[1], expected / np.linalg.norm(expected), atol=1e-5)
    (alone,) = ask(handler, "embeddings", {**asked, "input": [TEXTS[0], TEXTS[1]]})
    np.testing.assert_allclose(found[[0, 2]], vectors(alone), atol=1e-5)


def test_long_text_needs_a_model_that_pools_by_mean(tiny_archive: Made) -> None:
    first = {**NORMALIZED, "files": pooled(pooling_mode_cls_token=True)}
    with pytest.raises(InvalidConfig, match="pools by mean alone; this one has cls"):
        start(tiny_archive, first, long_text="mean")
