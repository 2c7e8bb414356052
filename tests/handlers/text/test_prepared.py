"""Workers that import no transformers tokenise like it: encoders on OpenVINO, and translators."""

import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from deploy.archives.tokens import check_tokenizer
from deploy.models import ROOT, model
from handlers.archive_files import CHECKPOINT
from handlers.checkpoints import load_tokenizer
from handlers.text import encoders
from handlers.text.encoders import PREPARED, read_tokenizer, write_tokenizer
from handlers.text.inputs import FastTokenizer
from handlers.text.translators import Original, Prepared, read_translator, write_translator
from handlers.text.windows import cut_tokens
from tests import tiny_models, tiny_seq2seq
from tests.handlers.serving import Patch, Temp
from tests.tiny_models import byte_level, change_json, word_piece

TEXTS, PAIRS = [*tiny_models.TEXTS, "<extra> [MASK] <mask>Anna <s>x</s> [SEP]"], [*tiny_models.TEXTS, "x"][::-1]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: Temp) -> Path:
    prefix, page = tmp_path_factory.mktemp("pieces") / "spiece", (ROOT / "tests" / "sentences_en.txt").read_text()
    with prefix.with_suffix(".model").open("wb") as file:
        tiny_seq2seq.train_pieces(page.splitlines(), file, vocab_size=400, control_symbols=["[CLS]", "[SEP]"])
    return prefix.with_suffix(".model")


Save = Callable[..., object]


def generic(kind: str, folder: Path, _: Path, **settings: Any) -> None:
    tiny_models.checkpoint(folder, kind, "text_classification")
    change_json(folder / "tokenizer_config.json", **settings)


def own_class(name: str, config: str, folder: Path, _: Path, **settings: Any) -> None:
    text = (word_piece() if config in ("bert", "distilbert", "mpnet") else byte_level()).to_str()
    model = json.loads(text)["model"]
    arguments = {"merges": [tuple(each) for each in model["merges"]]} if "merges" in model else {}
    getattr(transformers, name)(vocab=model["vocab"], **arguments, **settings).save_pretrained(folder)
    transformers.AutoConfig.for_model(config).save_pretrained(folder)


def cased_beside_uncased(folder: Path, pieces: Path) -> None:
    """Write a tokenizer.json that lowers case beside a configuration that does not; the class decides."""
    own_class("BertTokenizer", "bert", folder, pieces)
    change_json(folder / "tokenizer_config.json", do_lower_case=False, strip_accents=False)


def sentence_pieces(name: str, config: str, file: str, folder: Path, pieces: Path, **settings: Any) -> None:
    folder.mkdir()
    shutil.copyfile(pieces, folder / file)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **settings}))
    transformers.AutoConfig.for_model(config).save_pretrained(folder)


def saved_again(save: Save, folder: Path, pieces: Path) -> None:
    save(folder, pieces)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)


def cut_and_padded(folder: Path, _: Path) -> None:
    """Write a tokenizer.json with truncation and padding, as models of sentence-transformers have them."""
    tiny_models.checkpoint(folder, "bert", "text_classification")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(max_length=7, stride=2, direction="left")
    tokenizer.enable_padding(direction="left", pad_id=2, pad_type_id=0, length=20)
    tokenizer.save(str(folder / "tokenizer.json"))


def with_added_tokens(folder: Path, _: Path) -> None:
    tiny_models.checkpoint(folder, "roberta", "text_classification")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<extra>", transformers.AddedToken("plum cake", lstrip=True, rstrip=True)])
    tokenizer.add_special_tokens({"additional_special_tokens": ["ferry"]})
    tokenizer.save_pretrained(folder)


T5 = partial(sentence_pieces, "T5Tokenizer", "t5", "spiece.model")
CHECKPOINTS: dict[str, Save] = {
    **{kind: partial(generic, kind) for kind in ("bert", "distilbert", "roberta")},
    "left": partial(generic, "bert", truncation_side="left", padding_side="left", model_max_length=9),
    "special tokens are text": partial(generic, "bert", split_special_tokens=True),
    "truncation and padding": cut_and_padded,
    "added tokens": with_added_tokens,
    "BertTokenizer": partial(own_class, "BertTokenizer", "bert"),
    "cased": cased_beside_uncased,
    "DistilBertTokenizer": partial(own_class, "DistilBertTokenizer", "distilbert", do_lower_case=False),
    "MPNetTokenizer": partial(own_class, "MPNetTokenizer", "mpnet"),
    "RobertaTokenizer": partial(own_class, "RobertaTokenizer", "roberta", add_prefix_space=True, trim_offsets=False),
    "NllbTokenizer": partial(own_class, "NllbTokenizer", "m2m_100", src_lang="deu_Latn"),
    # Reading rounds scores of these, except in Python.
    "XLM-RoBERTa": partial(sentence_pieces, "XLMRobertaTokenizer", "xlm-roberta", "sentencepiece.bpe.model"),
    "DeBERTa": partial(sentence_pieces, "DebertaV2Tokenizer", "deberta-v2", "spm.model", do_lower_case=True),
    "T5": T5,
    "T5, saved": partial(saved_again, T5),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_prepared_tokenizer_and_configuration_are_those_of_transformers(name: str, tmp_path: Path, pieces: Any) -> None:
    checkpoint = tmp_path / CHECKPOINT
    CHECKPOINTS[name](checkpoint, pieces)
    check_tokenizer(model("sentence-embedding"), checkpoint)  # none of the settings is rejected
    oracle = transformers.AutoTokenizer.from_pretrained(checkpoint)
    write_tokenizer(checkpoint)
    tokenizer, config = read_tokenizer(checkpoint, trust_remote_code=False)
    assert isinstance(tokenizer, FastTokenizer)
    flags = {"return_token_type_ids": True, "return_attention_mask": False}
    for texts, pairs in ((TEXTS, None), (TEXTS, PAIRS), (TEXTS[:1], None)):
        own, expected = (each(texts, pairs, **flags) for each in (tokenizer, oracle))
        assert own == dict(expected)
        for ours, theirs in zip(own.encodings, expected.encodings, strict=True):
            for kind in ("ids", "type_ids", "tokens", "offsets", "word_ids", "sequence_ids", "special_tokens_mask"):
                assert getattr(ours, kind) == getattr(theirs, kind)
        for side, limit in (("left", 11), ("right", 12), ("right", 30)):
            oracle.truncation_side = side
            cut = oracle(texts, pairs, truncation=True, max_length=limit, **flags)
            found = [cut_tokens(tokenizer, ("", None), each, limit, side) for each in own.encodings]  # type: ignore[arg-type]
            assert found == [list(each) for each in zip(cut["input_ids"], cut["token_type_ids"], strict=True)]
        oracle.truncation_side = tokenizer.truncation_side
    tokens = oracle.tokenize(TEXTS[6])
    assert tokenizer.convert_tokens_to_string(tokens) == oracle.convert_tokens_to_string(tokens)
    names = {*vars(tokenizer)} - {"backend_tokenizer"}
    assert {name: getattr(tokenizer, name) for name in names} == {name: getattr(oracle, name) for name in names}
    assert len(tokenizer) == len(oracle)
    known = transformers.AutoConfig.from_pretrained(checkpoint)
    assert vars(config) == {name: getattr(known, name) for name in vars(config)}
    assert {"hidden_size", "vocab_size", "id2label", "num_labels", "problem_type"} <= vars(config).keys()


def test_tokenizer_in_python_is_not_prepared(tmp_path: Path) -> None:
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    transformers.T5Config().save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    assert not write_translator(tmp_path) and not (tmp_path / PREPARED).exists()
    assert not read_tokenizer(tmp_path, trust_remote_code=False)[0].is_fast


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    checkpoint = tiny_models.checkpoint(tmp_path / CHECKPOINT, "bert", "text_classification")
    write_tokenizer(checkpoint)
    return checkpoint


def test_argument_that_is_not_prepared_is_an_error(prepared: Path) -> None:
    tokenizer, config = read_tokenizer(prepared, trust_remote_code=False)
    options: list[dict[str, Any]] = [{"return_offsets_mapping": True}, {"truncation": True, "max_length": 12}]
    options += [{name: False} for name in ("add_special_tokens", "padding", "return_token_type_ids")]
    options += [{"max_length": 12}, {"return_attention_mask": True}]
    for texts, pairs, each in (*((TEXTS, None, each) for each in options), ("Anna", "Berg", {})):
        with pytest.raises(TypeError):
            tokenizer(texts, pairs, **each)
    for known in (tokenizer, config):
        with pytest.raises(AttributeError):
            _ = known.sep_token_id


def test_changed_and_trusted_checkpoints_are_read_by_transformers(prepared: Path, tmp_path: Path) -> None:
    assert isinstance(read_tokenizer(prepared, trust_remote_code=False)[0], FastTokenizer)
    assert not isinstance(read_tokenizer(prepared, trust_remote_code=True)[0], FastTokenizer)
    change_json(prepared / "tokenizer_config.json", truncation_side="left")
    tokenizer, _ = read_tokenizer(prepared, trust_remote_code=False)
    assert not isinstance(tokenizer, FastTokenizer) and tokenizer.truncation_side == "left"
    translator = tiny_seq2seq.marian(tmp_path)
    write_translator(translator)
    (translator / "generation_config.json").write_text("{}")
    assert isinstance(read_translator(translator, trust_remote_code=False), Original)


OWN = ["__call__", "_encode_plus", "_convert_encoding", "convert_tokens_to_string", "save_pretrained"]


@pytest.mark.parametrize("method", OWN)
def test_tokenizer_with_its_own_python_is_not_prepared(method: str, tmp_path: Path, monkeypatch: Patch) -> None:
    own: Any = type("Own", (transformers.PreTrainedTokenizerFast,), {method: lambda *_: None})
    checkpoint = tiny_models.checkpoint(tmp_path / CHECKPOINT, "bert", "sentence_embedding")
    monkeypatch.setattr(encoders, "load_tokenizer", lambda folder, **_: own.from_pretrained(folder))
    write_tokenizer(checkpoint)
    assert not (checkpoint / PREPARED).exists()


SOURCES = [
    *(*tiny_models.TEXTS, *tiny_seq2seq.SENTENCES, "", " ", "  two\t\n spaces ", "\u00a0\u3000x\u2009y\u200b\ufeff"),
    *("e\u0301 \u00e9 \u0130\u0131 \u00df \ufb01 \u2163 \u212b \uff21", "\u2581x\u2581 \u2581\u2581"),
    *("\U0001f469\u200d\U0001f680\U0001f3fd \u20ac", "\u0633\u0644\u0627\u0645 \u05e9\u05dc", "\x01\x7f\u0085"),
    *("\u6771\u4eac\u3002\ud55c", "<s>x</s> <unk><pad></s>", "</s", "x</s></s>y", ">>fra<< The sea", ">>fra<<The"),
    *(" >>fra<< x", ">>no<< x <<", ">>", "<<", "<<>>", ">>a", "__fr__ x __en__", "__f__fr__", "eng_Latn x fra_Latny"),
    *("en_XX x", "<2fr> x", "a" * 300),
]


def converted(name: str, kind: str, file: str, folder: Path) -> Path:
    """Write a model of sentencepiece alone, which transformers converts; its scores need all digits."""
    tiny_seq2seq.sentence_pieces(folder / file)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "model_max_length": 128}))
    transformers.AutoConfig.for_model(kind).save_pretrained(folder)
    return folder


TRANSLATORS: dict[str, Callable[[Path], Path]] = {
    "marian of languages": partial(tiny_seq2seq.marian, targets=("deu", "fra")),
    **{name: getattr(tiny_seq2seq, name) for name in ("marian", "m2m100", "nllb", "t5", "bart")},
    "T5 of sentencepiece": partial(converted, "T5Tokenizer", "t5", "spiece.model"),
    "mBART": partial(converted, "MBartTokenizer", "mbart", "sentencepiece.bpe.model"),
    "mBART-50": partial(converted, "MBart50Tokenizer", "mbart", "sentencepiece.bpe.model"),
}


@pytest.mark.parametrize("family", TRANSLATORS)
def test_prepared_translator_encodes_and_decodes_as_transformers(family: str, tmp_path: Path) -> None:
    folder = TRANSLATORS[family](tmp_path)
    check_tokenizer(model("translation"), folder)
    oracle = load_tokenizer(folder)
    assert write_translator(folder)
    own, original = read_translator(folder, trust_remote_code=False), Original(folder, trust_remote_code=False)
    assert isinstance(own, Prepared)
    assert (own.languages, own.pad_id, own.source_lang) == (original.languages, oracle.pad_token_id, None)
    sources: list[str | None] = [*sorted(own.languages.sources)[::40]] or [None]
    for source in sources:
        if source:
            oracle.src_lang = source
        for most in (None, 4, 9):
            cut = {"truncation": most is not None, "max_length": most}
            assert own.encode(SOURCES, source, most) == oracle(SOURCES, **cut)["input_ids"]
    known = sorted(oracle.get_vocab().values())
    rows = [random.Random(number).choices(known, k=12) for number in range(200)]
    assert own.decode(rows) == oracle.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
