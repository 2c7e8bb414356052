"""A worker on OpenVINO tokenises like transformers, and imports no transformers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
import transformers

from deploy.models import ROOT
from handlers.archive_files import CHECKPOINT
from handlers.text import encoders
from handlers.text.encoders import PREPARED, prepare_tokenizer, read_tokenizer
from handlers.text.inputs import FastTokenizer
from handlers.text.windows import cut_tokens
from tests import tiny_models
from tests.tiny_models import byte_level, word_piece

TEXTS, PAIRS = [*tiny_models.TEXTS, "<extra> [MASK] <mask>Anna <s>x</s> [SEP]"], [*tiny_models.TEXTS, "x"][::-1]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("pieces") / "spiece"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((ROOT / "tests" / "sentences_en.txt").read_text().splitlines()),
        model_prefix=str(prefix),
        vocab_size=400,
        control_symbols=["[CLS]", "[SEP]"],
        minloglevel=2,
    )
    return prefix.with_suffix(".model")


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


Save = Callable[[Path, Path], object]


def generic(kind: str, **settings: Any) -> Save:
    def save(folder: Path, _: Path) -> None:
        tiny_models.checkpoint(folder, kind, "text_classification")
        edit(folder / "tokenizer_config.json", **settings)

    return save


def own_class(name: str, config: str, **settings: Any) -> Save:
    """Write WordPiece, or bytes, as the class of a family saves it."""

    def save(folder: Path, _: Path) -> None:
        model = json.loads((word_piece() if config in ("bert", "distilbert", "mpnet") else byte_level()).to_str())
        vocabulary = model["model"]["vocab"]
        arguments = {"merges": [tuple(each) for each in model["model"]["merges"]]} if "merges" in model["model"] else {}
        getattr(transformers, name)(vocab=vocabulary, **arguments, **settings).save_pretrained(folder)
        transformers.AutoConfig.for_model(config).save_pretrained(folder)

    return save


def cased_beside_uncased(folder: Path, pieces: Path) -> None:
    """Write a tokenizer.json that lowers case beside a configuration that does not; the class decides."""
    own_class("BertTokenizer", "bert")(folder, pieces)
    edit(folder / "tokenizer_config.json", do_lower_case=False, strip_accents=False)


def sentence_pieces(name: str, config: str, file: str, **settings: Any) -> Save:
    """Copy the model alone, which transformers converts."""

    def save(folder: Path, pieces: Path) -> None:
        folder.mkdir()
        shutil.copyfile(pieces, folder / file)
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **settings}))
        transformers.AutoConfig.for_model(config).save_pretrained(folder)

    return save


def saved_again(save: Save) -> Save:
    """Write what transformers makes of a checkpoint, with tokenizer.json."""

    def again(folder: Path, pieces: Path) -> None:
        save(folder, pieces)
        transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)

    return again


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


T5 = sentence_pieces("T5Tokenizer", "t5", "spiece.model")
CHECKPOINTS: dict[str, Save] = {
    **{kind: generic(kind) for kind in ("bert", "distilbert", "roberta")},
    "left": generic("bert", truncation_side="left", padding_side="left", model_max_length=9),
    "special tokens are text": generic("bert", split_special_tokens=True),
    "truncation and padding": cut_and_padded,
    "added tokens": with_added_tokens,
    "BertTokenizer": own_class("BertTokenizer", "bert"),
    "cased": cased_beside_uncased,
    "DistilBertTokenizer": own_class("DistilBertTokenizer", "distilbert", do_lower_case=False),
    "MPNetTokenizer": own_class("MPNetTokenizer", "mpnet"),
    "RobertaTokenizer": own_class("RobertaTokenizer", "roberta", add_prefix_space=True, trim_offsets=False),
    "NllbTokenizer": own_class("NllbTokenizer", "m2m_100", src_lang="deu_Latn"),
    # Reading rounds scores of these, except in Python.
    "XLM-RoBERTa": sentence_pieces("XLMRobertaTokenizer", "xlm-roberta", "sentencepiece.bpe.model"),
    "DeBERTa": sentence_pieces("DebertaV2Tokenizer", "deberta-v2", "spm.model", do_lower_case=True),
    "T5": T5,
    "T5, saved": saved_again(T5),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_prepared_tokenizer_and_configuration_equal_those_of_transformers(
    name: str, tmp_path: Path, pieces: Path
) -> None:
    checkpoint = tmp_path / CHECKPOINT
    CHECKPOINTS[name](checkpoint, pieces)
    oracle = transformers.AutoTokenizer.from_pretrained(checkpoint)
    prepare_tokenizer(checkpoint)
    tokenizer, config = read_tokenizer(checkpoint, trust_remote_code=False)
    assert isinstance(tokenizer, FastTokenizer)
    flags = {"return_token_type_ids": True, "return_attention_mask": False}
    for texts, pairs in ((TEXTS, None), (TEXTS, PAIRS), (TEXTS[:1], None)):
        own = tokenizer(texts, pairs, **flags)
        expected = oracle(texts, pairs, **flags)
        assert own == dict(expected)
        for ours, theirs in zip(own.encodings, expected.encodings, strict=True):
            for kind in ("ids", "type_ids", "tokens", "offsets", "word_ids", "sequence_ids", "special_tokens_mask"):
                assert getattr(ours, kind) == getattr(theirs, kind)
        for side, limit in (("left", 11), ("right", 12), ("right", 30)):
            oracle.truncation_side = side
            cut = oracle(texts, pairs, truncation=True, max_length=limit, **flags)
            found = [cut_tokens(tokenizer, ("", None), each, limit, side) for each in own.encodings]  # type: ignore[arg-type]
            assert [ids for ids, _ in found] == cut["input_ids"]
            assert [type_ids for _, type_ids in found] == cut["token_type_ids"]
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
    prepare_tokenizer(tmp_path)
    assert not (tmp_path / PREPARED).exists()
    assert not read_tokenizer(tmp_path, trust_remote_code=False)[0].is_fast


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    checkpoint = tiny_models.checkpoint(tmp_path / CHECKPOINT, "bert", "text_classification")
    prepare_tokenizer(checkpoint)
    return checkpoint


@pytest.mark.parametrize(
    "options",
    [
        {"add_special_tokens": False},
        {"truncation": True, "max_length": 12},
        {"max_length": 12},
        {"return_offsets_mapping": True},
        {"return_attention_mask": True},
        {"return_token_type_ids": False},
        {"padding": False},
    ],
    ids=str,
)
def test_argument_that_is_not_prepared_is_an_error(options: dict[str, Any], prepared: Path) -> None:
    tokenizer, config = read_tokenizer(prepared, trust_remote_code=False)
    with pytest.raises(TypeError):
        tokenizer(TEXTS, **options)
    with pytest.raises(TypeError):
        tokenizer("Anna", "Berg")
    for each in (tokenizer, config):
        with pytest.raises(AttributeError):
            _ = each.mask_token_id


def test_changed_and_trusted_checkpoints_are_read_by_transformers(prepared: Path) -> None:
    assert isinstance(read_tokenizer(prepared, trust_remote_code=False)[0], FastTokenizer)
    assert not isinstance(read_tokenizer(prepared, trust_remote_code=True)[0], FastTokenizer)
    edit(prepared / "tokenizer_config.json", truncation_side="left")
    tokenizer, _ = read_tokenizer(prepared, trust_remote_code=False)
    assert not isinstance(tokenizer, FastTokenizer)
    assert tokenizer.truncation_side == "left"


@pytest.mark.parametrize(
    "method", ["__call__", "_encode_plus", "_convert_encoding", "convert_tokens_to_string", "save_pretrained"]
)
def test_tokenizer_with_its_own_python_is_not_prepared(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = type("Own", (transformers.PreTrainedTokenizerFast,), {method: lambda *_: None})
    checkpoint = tiny_models.checkpoint(tmp_path / CHECKPOINT, "bert", "sentence_embedding")
    monkeypatch.setattr(encoders, "load_tokenizer", lambda folder, **_: own.from_pretrained(folder))
    prepare_tokenizer(checkpoint)
    assert not (checkpoint / PREPARED).exists()
