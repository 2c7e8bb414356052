"""The limit and the pooling that a model's files declare, and the lengths that texts are padded to."""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from sentence_transformers.sentence_transformer import modules

from deploy.archives.encoders import read_head
from handlers.errors import InvalidConfig
from handlers.text.encoder_modules import load_encoder
from handlers.text.encoders import ROBERTA_LIKE, find_token_limit
from handlers.text.inputs import round_length
from handlers.text.sentence_files import Prompts
from handlers.text.sentence_modules import check_reranker
from handlers.text.sentence_network import POOLINGS, SentenceModules
from tests.tables import table
from tests.tiny_models import checkpoint


def write(folder: Path, files: Mapping[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))


BERT = {"max_position_embeddings": 512, "model_type": "bert", "pad_token_id": 0}
ROBERTA = {"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1}


@table(
    ({"sentence_bert_config.json": {"max_seq_length": 128}, "config.json": BERT}, 128),
    ({"sentence_xlm-roberta_config.json": {"max_seq_length": 16}, "config.json": BERT}, 16),
    *(({"config.json": BERT}, 512), ({"config.json": ROBERTA}, 512)),
    ({"config.json": {}, "tokenizer_config.json": {"model_max_length": 10**30}}, None),
    ({"config.json": BERT, "tokenizer_config.json": {"model_max_length": 384}}, 384),
)
def test_token_limit_is_what_the_models_files_say(files: dict[str, Any], limit: int | None, tmp_path: Path) -> None:
    write(tmp_path, files)
    assert find_token_limit(tmp_path) == limit


@pytest.mark.parametrize("kind", sorted(ROBERTA_LIKE))
def test_model_has_a_position_for_each_token_and_none_more(kind: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 8}
    own: dict[str, dict[str, Any]] = {
        "esm": {"position_embedding_type": "absolute"},
        "luke": {"entity_vocab_size": 5, "entity_emb_size": 8},
    }
    own |= {"xmod": {"languages": ["en_XX"], "default_language": "en_XX"}, "longformer": {"attention_window": 4}}
    own |= {"layoutlmv3": {"coordinate_size": 8, "shape_size": 8}}
    options: dict[str, Any] = {
        **sizes,
        "vocab_size": 9,
        "pad_token_id": 1,
        "max_position_embeddings": 22,
        **own.get(kind, {}),
    }
    config = transformers.AutoConfig.for_model(kind, **options)
    config.save_pretrained(tmp_path)
    model, limit = transformers.AutoModel.from_config(config).eval(), find_token_limit(tmp_path)
    assert limit == 20
    with torch.no_grad():
        model(torch.full((1, limit), 3))
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, limit + 1), 3))


SETTINGS, PROMPTS = "sentence_bert_config.json", {"prompts": {"query": "query: "}}
SWISH = {"in_features": 4, "out_features": 2, "activation_function": "mine.Swish"}


def module(kind: str, path: str) -> dict[str, str]:
    return {"type": f"sentence_transformers.models.{kind}", "path": path}


FIRST, POOLING = module("Transformer", ""), module("Pooling", "1")


def of(*modules: Any, **files: Any) -> dict[str, Any]:
    """Files of a model of these modules; `one` and `two` are the configurations of the second and third."""
    named = {"one": "1/config.json", "two": "2/config.json", "settings": SETTINGS}
    return {"1/config.json": {}, "modules.json": [*modules], **{named[name]: files[name] for name in files}}


UNPROMPTED = {**of(FIRST, POOLING, one={"include_prompt": False}), "config_sentence_transformers.json": PROMPTS}
DENSE = [FIRST, POOLING, module("Dense", "2")]


@table(
    (SentenceModules, of(FIRST, module("CNN", "1")), "sentence_transformers.models.CNN is not supported"),
    (SentenceModules, of(FIRST, {"type": "custom_st.Pooling", "path": "1"}), "custom_st.Pooling is not supported"),
    (SentenceModules, of(module("StaticEmbedding", "")), "StaticEmbedding, must be a Transformer"),
    (SentenceModules, of(module("Transformer", "0"), POOLING), "Transformer, must be a Transformer in the folder"),
    (SentenceModules, of(FIRST), "one Pooling must follow"),
    (SentenceModules, of(FIRST, module("Pooling", "")), "Pooling needs a folder/config.json"),
    (SentenceModules, of(FIRST, POOLING, one={"pooling_mode": "median"}), "median is not supported"),
    (SentenceModules, UNPROMPTED, "include_prompt: false is not supported"),
    (SentenceModules, of(FIRST, POOLING, settings={"transformer_task": "fill-mask"}), "fill-mask"),
    (SentenceModules, of(FIRST, POOLING, settings={"query_length": 8}), "query_length is not supported"),
    (SentenceModules, of(*DENSE, two={}), "in_features"),
    (SentenceModules, of(*DENSE, two=SWISH), "mine.Swish is not a module of torch.nn"),
    (SentenceModules, of(FIRST, POOLING, module("LayerNorm", "2"), two={"dimension": 4}), "2 lacks"),
    (check_reranker, of(FIRST, module("Dense", "2")), "Dense is not supported for a reranker"),
    (check_reranker, of(FIRST, module("LogitScore", "2")), "LogitScore: its config.json lacks true_token_id"),
    (check_reranker, {"config.json": {"architectures": ["Qwen2ForCausalLM"]}}, "needs modules.json with a LogitScore"),
    (check_reranker, {"additional_chat_templates/rerank.jinja": "{{ messages }}"}, "chat template: only one"),
    (check_reranker, {"tokenizer_config.json": {"chat_template": [{}]}}, "chat template: only one"),
    (check_reranker, {SETTINGS: {"do_lower_case": True}}, "do_lower_case: True is not supported"),
    (check_reranker, {SETTINGS: {"processing_kwargs": {"text": {"padding": "max_length"}}}}, "text: padding is not"),
    (check_reranker, {SETTINGS: {"processing_kwargs": {"chat_template": {"tokenize": 1}}}}, "tokenize is not"),
)
def test_files_that_are_not_served_are_rejected_by_name(read: Any, files: Any, words: str, tmp_path: Path) -> None:
    check_reranker(tmp_path)
    write(tmp_path, files)
    with pytest.raises(InvalidConfig, match=words):
        read(tmp_path)


def test_modules_after_the_transformer_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [
        modules.Pooling(4, pooling_mode="mean"),
        modules.Dense(4, 4, use_residual=True),
        modules.Dense(4, 6, use_residual=True, activation_function=torch.nn.GELU()),
        modules.Dense(6, 3, bias=False, activation_function=torch.nn.Identity()),
        *(modules.LayerNorm(3), modules.Dropout(0.5), modules.Normalize()),
    ]
    torch.nn.init.normal_(layers[4].norm.weight)
    features = {"token_embeddings": torch.rand(2, 3, 4), "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]])}
    ours, listed = (*features.values(),), [FIRST]
    for number, layer in enumerate(layers, 1):
        (tmp_path / str(number)).mkdir()
        layer.save(str(tmp_path / str(number)))
        listed.append(module(type(layer).__name__, str(number)))
        features = layer.eval()(features)
    write(tmp_path, {"modules.json": listed, "config_sentence_transformers.json": {"truncate_dim": 2}})
    vectors = SentenceModules(tmp_path).eval()(*ours)
    torch.testing.assert_close(vectors, features["sentence_embedding"][:, :2])


NAMES = ["input_ids", "attention_mask"]


@table(
    *(("bert", [*NAMES, "token_type_ids"], "5.23.0", True), ("bert", NAMES, "4.50.0", False)),
    *(("bert", None, "4.50.0", True), ("bert", None, "5.23.0", None), ("bert, one segment", None, "4.50.0", None)),
    ("roberta", None, "5.23.0", False),
)
def test_model_of_pairs_is_told_the_texts(kind: str, names: Any, version: str, is_told: Any, tmp_path: Path) -> None:
    checkpoint(tmp_path, kind.partition(",")[0], "question_answering", type_vocab_size=2)
    changes = {"tokenizer_config.json": {"model_input_names": names}, "config.json": {"transformers_version": version}}
    for name, change in changes.items():
        content = {**json.loads((tmp_path / name).read_text()), **change}
        write(tmp_path, {name: {key: each for key, each in content.items() if each is not None}})
    if "one segment" in kind:
        path = tmp_path / "tokenizer.json"
        path.write_text(path.read_text().replace('"type_id": 1', '"type_id": 0'))
    with nullcontext() if is_told is not None else pytest.raises(InvalidConfig, match="add model_input_names to"):
        assert ("token_type_ids" in load_encoder(read_head("question_answering"), tmp_path).input_names) is is_told


def test_rounded_length_takes_few_values_that_hold_the_tokens_with_little_padding() -> None:
    for limit in (7, 100, 512, 4096):
        for length in range(1, limit + 1):
            rounded = round_length(length, limit)
            assert length <= rounded <= limit and rounded - length < max(8, length / 4)
    assert len({round_length(length, 512) for length in range(1, 513)}) == 20


@pytest.mark.parametrize("mode", POOLINGS)
def test_padding_on_either_side_changes_no_vector(mode: str) -> None:
    """All numbers are below 0, the value that takes the place of others."""
    states = -1 - torch.rand((1, 3, 4), generator=torch.Generator().manual_seed(0))
    (alone,) = POOLINGS[mode](states, torch.tensor([[[1], [2], [3]]]))
    for before, after in ((0, 2), (2, 0)):
        padded = torch.nn.functional.pad(states, (0, 0, before, after), value=torch.nan)
        places = torch.tensor([[*[0] * before, 1, 2, 3, *[0] * after]]).unsqueeze(-1)
        assert torch.equal(POOLINGS[mode](padded, places)[0], alone)
    # Together with a longer text.
    both = torch.cat([torch.nn.functional.pad(states[:, :2], (0, 0, 0, 1), value=torch.nan), states])
    pair = POOLINGS[mode](both, torch.tensor([[1, 2, 0], [1, 2, 3]]).unsqueeze(-1))
    assert torch.equal(pair, torch.stack([*POOLINGS[mode](states[:, :2], torch.tensor([[[1], [2]]])), alone]))
    first, second, third = states[0]
    weighted = (first + 2 * second + 3 * third) / 6
    wanted = {"cls": first, "lasttoken": third, "mean": states[0].mean(0), "max": states[0].max(0).values}
    wanted |= {"mean_sqrt_len_tokens": states[0].sum(0) / 3**0.5, "weightedmean": weighted}
    torch.testing.assert_close(alone, wanted[mode])


@table(
    (None, None, "a: "),
    ("q", None, "q: "),
    ("q", "document", "q: "),
    (None, "document", "p: "),
    # The model has no prompt for it.
    (None, "clustering", "a: "),
)
def test_prompt_is_the_named_one_or_that_of_the_kind_or_the_default(name: Any, kind: Any, expected: str) -> None:
    texts = {"q": "q: ", "passage": "p: ", "corpus": "c: ", "any": "a: "}
    assert Prompts(texts, "any").find(name, kind) == expected
    assert Prompts(texts).find(name, kind) == expected.removeprefix("a: ")
