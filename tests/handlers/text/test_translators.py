"""A translation archive's tokenizer without transformers: ids and texts are those of transformers."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

from handlers.checkpoints import load_tokenizer
from handlers.text.encoders import PREPARED
from handlers.text.translators import Original, Prepared, prepare_translator, read_translator
from tests import tiny_models, tiny_seq2seq

TEXTS = [
    *(*tiny_models.TEXTS, *tiny_seq2seq.SENTENCES, "", " ", "  two\t\n spaces ", "\u00a0\u3000x\u2009y\u200b\ufeff"),
    *("e\u0301 \u00e9 \u0130\u0131 \u00df \ufb01 \u2163 \u212b \uff21", "\u2581x\u2581 \u2581\u2581", "\x01\x7f\u0085"),
    *(
        "\U0001f469\u200d\U0001f680\U0001f3fd \u20ac",
        "\u0633\u0644\u0627\u0645 \u05e9\u05dc",
        "\u6771\u4eac\u3002\ud55c",
    ),
    *("<s>x</s> <unk><pad></s>", "</s", "x</s></s>y", ">>fra<< The sea", ">>fra<<The", " >>fra<< x", ">>no<< x <<"),
    *(
        ">>",
        "<<",
        "<<>>",
        ">>a",
        "__fr__ x __en__",
        "__f__fr__",
        "eng_Latn x fra_Latny",
        "en_XX x",
        "<2fr> x",
        "a" * 300,
    ),
]


def pieces(folder: Path, file: str, name: str, kind: str) -> Path:
    """Write a model of sentencepiece alone, which transformers converts; its scores need all digits."""
    tiny_seq2seq.sentence_pieces(folder / file)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "model_max_length": 128}))
    transformers.AutoConfig.for_model(kind).save_pretrained(folder)
    return folder


CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "marian": tiny_seq2seq.marian,
    "marian of languages": lambda folder: tiny_seq2seq.marian(folder, ("deu", "fra")),
    **{each.__name__: each for each in (tiny_seq2seq.m2m100, tiny_seq2seq.nllb, tiny_seq2seq.t5, tiny_seq2seq.bart)},
    "T5 of sentencepiece": lambda folder: pieces(folder, "spiece.model", "T5Tokenizer", "t5"),
    "mBART": lambda folder: pieces(folder, "sentencepiece.bpe.model", "MBartTokenizer", "mbart"),
    "mBART-50": lambda folder: pieces(folder, "sentencepiece.bpe.model", "MBart50Tokenizer", "mbart"),
}


@pytest.mark.parametrize("family", CHECKPOINTS)
def test_prepared_tokenizer_encodes_and_decodes_as_transformers(family: str, tmp_path: Path) -> None:
    folder = CHECKPOINTS[family](tmp_path)
    oracle = load_tokenizer(folder)
    assert prepare_translator(folder)
    own, original = read_translator(folder, trust_remote_code=False), Original(folder, trust_remote_code=False)
    assert isinstance(own, Prepared)
    assert (own.languages, own.pad_id, own.source_lang) == (original.languages, oracle.pad_token_id, None)
    sources: list[str | None] = [*sorted(own.languages.sources)[::40]] or [None]
    for source in sources:
        if source:
            oracle.src_lang = source
        for most in (None, 4, 9):
            cut = {"truncation": most is not None, "max_length": most}
            assert own.encode(TEXTS, source, most) == oracle(TEXTS, **cut)["input_ids"]
    known = sorted(oracle.get_vocab().values())
    rows = [random.Random(number).choices(known, k=12) for number in range(200)]
    assert own.decode(rows) == oracle.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_tokenizer_that_only_transformers_has_is_not_prepared(tmp_path: Path) -> None:
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    transformers.T5Config().save_pretrained(tmp_path)
    assert not prepare_translator(tmp_path)
    assert not (tmp_path / PREPARED).exists()


def test_changed_checkpoint_is_read_by_transformers(tmp_path: Path) -> None:
    folder = tiny_seq2seq.marian(tmp_path)
    prepare_translator(folder)
    (folder / "generation_config.json").write_text("{}")
    assert isinstance(read_translator(folder, trust_remote_code=False), Original)
