"""Pieces of text, joined, are the text of all tokens, whatever tokens these are and however they come."""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sentencepiece
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from deploy.models import ROOT
from handlers.engines.seq2seq import load_tokenizer
from handlers.text.pieces import REPLACEMENT, Detokenizer, TextPieces
from tests import tiny_seq2seq

REAL = ROOT.parent / "shared" / "models" / "opus-mt-en-fr"
TEXTS = ["Wo sind wir? 3 €, ja: 日本語と🙂🙂 é!", "  two  spaces,\na line \u00a0 and no break ", "e\u0301 👨‍👩‍👧 ﷽ ..."]


def marian_of_bytes(folder: Path) -> Any:
    """Marian's tokenizer on a vocabulary that has all bytes."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tiny_seq2seq.SENTENCES * 4),
        model_prefix=str(folder / "source"),
        vocab_size=370,
        byte_fallback=True,
        minloglevel=2,
    )
    (folder / "source.model").rename(folder / "source.spm")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    words = ["</s>", "<unk>", *(piece for piece in pieces if piece not in ("<s>", "</s>", "<unk>")), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return transformers.MarianTokenizer(
            str(folder / "source.spm"), str(folder / "source.spm"), str(folder / "vocab.json")
        )


def _vocabulary() -> dict[str, int]:
    words = [
        "<pad>",
        "</s>",
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁▁",
        "▁a",
        "▁wo",
        "rd",
        "s",
        ".",
    ]
    return {word: number for number, word in enumerate(words)}


def fast_of_bytes(folder: Path) -> Any:
    """A tokenizer of Rust that falls back to bytes, with the decoder that such checkpoints bring."""
    backend = Tokenizer(models.BPE(vocab=_vocabulary(), merges=[], unk_token=tiny_seq2seq.UNKNOWN, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **dict(zip(("pad_token", "eos_token", "unk_token"), tiny_seq2seq.SPECIAL[1:], strict=True)),
    )


def byte_level(folder: Path) -> Any:
    """A tokenizer of bytes that knows no words, as BART's."""
    backend = Tokenizer(
        models.BPE(vocab={c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)


def tiny(make: Callable[[Path], Path]) -> Callable[[Path], Any]:
    return lambda folder: load_tokenizer(make(folder))


KINDS: dict[str, Callable[[Path], Any]] = {
    "marian": tiny(tiny_seq2seq.marian),
    "m2m100": tiny(tiny_seq2seq.m2m100),
    "nllb": tiny(tiny_seq2seq.nllb),
    "seamless": tiny(tiny_seq2seq.seamless),
    "t5": tiny(tiny_seq2seq.t5),
    "marian of bytes": marian_of_bytes,
    "fast of bytes": fast_of_bytes,
    "byte level": byte_level,
    **({"opus-mt-en-fr": lambda _: load_tokenizer(REAL)} if REAL.is_dir() else {}),
}


class Checked(NamedTuple):
    """A tokenizer, and what is made of it."""

    tokenizer: Any
    detokenizer: Detokenizer

    def whole(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def pieces(self, ids: list[int], groups: list[int]) -> tuple[list[str], Any]:
        """Give the ids in groups of these sizes, the last over and over."""
        text = TextPieces(self.detokenizer, lambda said: {"said": said})
        pieces: list[str] = []
        at = turn = 0
        while at < len(ids):
            size = groups[min(turn, len(groups) - 1)]
            pieces.append(text.add(ids[at : at + size]))
            at, turn = at + size, turn + 1
        rest, result = text.end()
        return [*pieces, rest], result


@pytest.fixture(scope="module", params=KINDS)
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checked:
    tokenizer = KINDS[request.param](tmp_path_factory.mktemp("tokenizer"))
    return Checked(tokenizer, Detokenizer.of(tokenizer))


def test_pieces_of_any_tokens_joined_are_the_text_of_all(checked: Checked) -> None:
    vocabulary = len(checked.tokenizer)
    # Tokens that need care stand close together: bytes, spaces, special ones.
    strange = [
        number
        for number, token in enumerate(checked.tokenizer.convert_ids_to_tokens(list(range(vocabulary))))
        if token is None or len(token) < 3 or token.startswith("<") or not token.isascii()
    ][:600] or [0]
    known = st.one_of(st.integers(0, vocabulary - 1), st.sampled_from(strange))

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(st.lists(known, max_size=40), st.lists(st.integers(1, 7), min_size=1, max_size=8))
    def holds(ids: list[int], groups: list[int]) -> None:
        pieces, result = checked.pieces(ids, groups)
        assert "".join(pieces) == checked.whole(ids)
        assert result == {"said": checked.whole(ids)}

    holds()


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_of_text_never_hold_a_part_of_a_character(checked: Checked, text: str) -> None:
    ids = checked.tokenizer(text)["input_ids"]
    pieces, _ = checked.pieces(ids, [1])
    whole = checked.whole(ids)
    assert "".join(pieces) == whole
    assert REPLACEMENT in whole or not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the weights of opus-mt-en-fr in shared/models")
def test_pieces_come_with_every_token_and_those_of_a_long_text_cost_no_more_each() -> None:
    tokenizer = load_tokenizer(REAL)
    detokenizer = Detokenizer.of(tokenizer)
    ids = tokenizer(text_target="Les pêcheurs réparent leurs filets et parlent de la tempête. " * 20)["input_ids"]
    pieces, _ = Checked(tokenizer, detokenizer).pieces(ids, [1])
    assert sum(bool(piece) for piece in pieces) > 0.9 * len(ids)

    def decoded(count: int) -> int:
        decoded = 0

        def counting(some: Sequence[int]) -> str:
            nonlocal decoded
            decoded += len(some)
            return detokenizer.decode(some)

        text = TextPieces(replace(detokenizer, decode=counting), str)
        for token in ids[:count]:
            text.add([token])
        return decoded

    assert decoded(200) < 2.5 * decoded(100)
