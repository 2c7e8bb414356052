"""Tokenizers whose class makes other tokens than their tokenizer.json, which is the oracle."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import transformers

from deploy.archives.tokens import check_tokenizer
from deploy.models import model
from handlers.errors import InvalidConfig
from tests.deploy.archives.conftest import ArchiveSh
from tests.handlers.text import test_prepared
from tests.tables import table
from tests.tiny_models import change_json, checkpoint

pieces = test_prepared.pieces
MODEL = model("sentence-embedding")
SAVED: dict[str, Callable[[Path, Path], object]] = {
    "XLM-R": partial(
        test_prepared.saved_again,
        partial(test_prepared.sentence_pieces, "XLMRobertaTokenizer", "xlm-roberta", "sentencepiece.bpe.model"),
    ),
    "BERT": partial(test_prepared.own_class, "BertTokenizer", "bert"),
    "cased": partial(test_prepared.own_class, "BertTokenizer", "bert", do_lower_case=False),
    "RoBERTa": partial(test_prepared.generic, "roberta"),
}


@table(
    *((("XLM-R", name, {}), '"tokenizer_class": "XLMRobertaTokenizer"') for name in ("BertTokenizer", "T5Tokenizer")),
    (("XLM-R", "RobertaTokenizerFast", {}), '"tokenizer_class": "XLMRobertaTokenizer"'),
    # As a popular multilingual model: the class is missing, and that of its model_type is another.
    (("XLM-R", None, {"model_type": "bert"}), '"tokenizer_class": "XLMRobertaTokenizer"'),
    (("XLM-R", "ByT5Tokenizer", {}), '"tokenizer_class": "XLMRobertaTokenizer"'),
    (("BERT", "RobertaTokenizer", {}), '"tokenizer_class": "BertTokenizer"'),
    (("BERT", "XLMRobertaTokenizer", {}), '"tokenizer_class": "BertTokenizer"'),
    (("cased", "BertTokenizer", {}), '"do_lower_case": false'),
    (("RoBERTa", "BertTokenizer", {}), '"tokenizer_class": "RobertaTokenizer"'),
    (("RoBERTa", "T5Tokenizer", {"model_type": "llama"}), '"tokenizer_class": "PreTrainedTokenizerFast"'),
)
def test_other_tokens_are_rejected_with_what_to_write(case: Any, way_out: str, tmp_path: Path, pieces: Path) -> None:
    name, kind, config = case
    folder = tmp_path / "model"
    SAVED[name](folder, pieces)
    path = folder / "tokenizer_config.json"
    settings = {key: value for key, value in json.loads(path.read_text()).items() if key != "do_lower_case"}
    path.write_text(json.dumps({**settings, "tokenizer_class": kind}))
    change_json(folder / "config.json", **config)
    texts = ["The Quick Brown fox, isn't it?", "Caf\u00e9 in 2024"]
    with pytest.raises(InvalidConfig, match=f"tokenizer.json.*; write {way_out} in tokenizer_config.json"):
        check_tokenizer(MODEL, folder)
    change_json(path, **json.loads(f"{{{way_out}}}"))
    check_tokenizer(MODEL, folder)
    backend = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).backend_tokenizer
    found = transformers.AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]
    assert found == [each.ids for each in backend.encode_batch(texts)]


def test_class_that_transformers_forces_is_said_if_only_odd_texts_differ(tmp_path: Path, capsys: Any) -> None:
    checkpoint(tmp_path, "roberta", "sentence_embedding")
    change_json(tmp_path / "config.json", model_type="qwen2")
    check_tokenizer(MODEL, tmp_path)
    assert "Qwen2Tokenizer of transformers makes other tokens of" in capsys.readouterr().err
    change_json(tmp_path / "tokenizer.json", normalizer={"type": "Lowercase"})
    with pytest.raises(InvalidConfig, match=r"Qwen2Tokenizer of transformers makes other tokens of .*save_pretrained"):
        check_tokenizer(MODEL, tmp_path)


@table(
    ("tokenizer.json", {"pre_tokenizer": {"type": "Later"}}, r"cannot read tokenizer\.json \(.*\): it is broken, or"),
    ("config.json", {"id2label": ["a"]}, r"cannot read config\.json \(.*\); correct it"),
)
def test_file_at_fault_is_named(name: str, change: Any, words: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, "bert", "sentence_embedding")
    change_json(tmp_path / name, **change)
    with pytest.raises(InvalidConfig, match=words):
        check_tokenizer(MODEL, tmp_path)


TEXT_TASKS = ("text_classification", "token_classification", "question_answering", "reranking", "sentence_embedding")


@pytest.mark.parametrize("task", [*TEXT_TASKS, "tokenization", "translation", "image_text_embedding"])
def test_every_task_on_texts_rejects_other_tokens(task: str, archive_sh: ArchiveSh, pieces: Path) -> None:
    archive_sh.write_list("own", task)
    folder = archive_sh.folder / "weights"
    SAVED["BERT"](folder, pieces)
    change_json(folder / "tokenizer_config.json", tokenizer_class="RobertaTokenizer")
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    assert '; write "tokenizer_class": "BertTokenizer" in' in archive_sh.rejected("own", "--weights", str(folder))
