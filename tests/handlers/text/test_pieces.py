"""Pieces of text, joined, are the text of all tokens, whatever tokens these are and however they come."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sentencepiece
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from handlers.text.pieces import REPLACEMENT, Detokenizer, TextPieces
from tests import tiny_seq2seq

TEXTS = ["Wo sind wir? 3 €, ja: 日本語と🙂🙂 é!", "  two  spaces,\na line \u00a0 and no break ", "e\u0301 👨‍👩‍👧 ﷽ ..."]
SPECIAL = dict(zip(("pad_token", "eos_token", "unk_token"), tiny_seq2seq.SPECIAL[1:], strict=True))
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def marian(folder: Path, *, has_bytes: bool) -> Any:
    """Marian's tokenizer, whose vocabulary may have all bytes."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tiny_seq2seq.SENTENCES * 4),
        model_prefix=str(folder / "source"),
        vocab_size=370 if has_bytes else 110,
        byte_fallback=has_bytes,
        minloglevel=2,
    )
    path = str(folder / "source.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    words = ["</s>", "<unk>", *(piece for piece in pieces if piece not in ("<s>", "</s>", "<unk>")), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return transformers.MarianTokenizer(path, path, str(folder / "vocab.json"))


def fast_of_bytes(_folder: Path) -> Any:
    """A tokenizer of Rust that falls back to bytes, with the decoder that such checkpoints bring."""
    words = ["<pad>", "</s>", "<unk>", *BYTES, "▁", "▁▁", "▁a", "▁wo", "rd", "s", "."]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=tiny_seq2seq.UNKNOWN, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)


def byte_level(_folder: Path) -> Any:
    """A tokenizer of bytes that knows no words, as BART's."""
    alphabet = {c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)


KINDS: dict[str, Callable[[Path], Any]] = {
    "marian": lambda folder: marian(folder, has_bytes=False),
    "marian of bytes": lambda folder: marian(folder, has_bytes=True),
    "fast": lambda _: tiny_seq2seq.own_tokenizer()[0],
    "fast of bytes": fast_of_bytes,
    "byte level": byte_level,
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
    tokens = checked.tokenizer.convert_ids_to_tokens(list(range(len(checked.tokenizer))))
    # Tokens that need care stand close together: bytes, spaces, special ones.
    strange = [n for n, each in enumerate(tokens) if len(each) < 3 or each[0] == "<" or not each.isascii()]
    known = st.one_of(st.integers(0, len(tokens) - 1), st.sampled_from(strange))

    @settings(max_examples=60, database=None)
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


def test_pieces_come_with_every_word_and_those_of_a_long_text_cost_no_more_each(tmp_path: Path) -> None:
    tokenizer = marian(tmp_path, has_bytes=False)
    ids = tokenizer(tiny_seq2seq.PAGE * 3)["input_ids"]
    decoded: list[int] = []

    def counting(some: Any) -> str:
        decoded.append(len(some))
        text: str = tokenizer.decode(some, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    text = TextPieces(replace(Detokenizer.of(tokenizer), decode=counting), str)
    pieces = [text.add([token]) for token in ids]
    # A space that is a token of its own waits for its word.
    assert sum(bool(piece) for piece in pieces) > 0.8 * len(ids)
    assert max(decoded) < 20
