"""The tokenizer and the settings of a translation model, without the import of transformers if they are prepared.

builder: checkpoint -> write_translator -> prepared.json, if it encodes and decodes as transformers does
worker:  prepared.json -> read_translator -> Prepared; without it -> Original
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from handlers.aliases import Json
from handlers.checkpoints import import_transformers, load_tokenizer
from handlers.text.encoders import PREPARED, backend_of, hash_sources, read_backend
from handlers.text.languages import Languages, Target, read_languages
from handlers.text.sentence_files import read_json

# The settings of a GenerationConfig that a worker on CTranslate2 reads.
GENERATION = (
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "bad_words_ids", "suppress_tokens"),
    *("decoder_start_token_id", "eos_token_id", "forced_bos_token_id", "forced_eos_token_id", "early_stopping"),
    *("no_repeat_ngram_size", "repetition_penalty", "length_penalty"),
)
# Classes that transformers has in Python: sentencepiece between special tokens -> whether >>codes<< are special, too.
IN_PYTHON = {"MarianTokenizer": True, "M2M100Tokenizer": False}
# Texts that both must encode alike, besides all added tokens: white space, accents, ligatures, scripts, emoji, marks.
ODD = (
    *("Yes.", " two  spaces ", "a\tb\nc\r\nd", "Caf\u00e9, na\u00efve! 1,024", "e\u0301 \u0130 \ufb01 \u2163"),
    *("\ud55c\uad6d \u041f\u0440 \u6771 \u0928\u092e", "\U0001f469\u200d\U0001f680", "\u200b\ufeff\u00ad"),
    *("\u2581\u2581 \u2581x", ">>x<< a >>b<<", ">>", "<<>>fra<<", "x" * 90, "\u2028\u00a0\x7f"),
)


class Original:
    """Encodes and decodes with transformers."""

    def __init__(self, folder: Path, *, trust_remote_code: bool) -> None:
        self._tokenizer: Any = load_tokenizer(folder, trust_remote_code=trust_remote_code)
        # The language is a state of the tokenizer, and in adaptive mode several threads prepare items.
        self._lock = threading.Lock()
        self.generation, self.positions = read_generation(folder, trust_remote_code=trust_remote_code)
        self.languages = read_languages(self._tokenizer, self.generation)
        self.pad_id: int = self._tokenizer.pad_token_id
        #: The language of texts if the model has only one; None if its files do not name it.
        self.source_lang: str | None = getattr(self._tokenizer, "source_lang", None)

    def encode(self, texts: Sequence[str], source: str | None, most: int | None = None) -> list[list[int]]:
        """Return the ids of each text of a language, special ones included, cut to `most`."""
        with self._lock:
            if source is not None:
                self._tokenizer.src_lang = source
            encoded = self._tokenizer(list(texts), truncation=most is not None, max_length=most)
        return encoded["input_ids"]  # type: ignore[no-any-return]

    def decode(self, rows: object) -> list[str]:
        """Return the text of each answer, (B, U) ids."""
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return self._tokenizer.batch_decode(rows, **options)  # type: ignore[no-any-return]

    def describe(self, folder: Path) -> Json | None:
        """Return the content of prepared.json; None if only transformers encodes as this tokenizer does."""
        tokenizer, kind = self._tokenizer, type(self._tokenizer).__name__
        content: Json
        if tokenizer.is_fast:
            content = {"backend": backend_of(tokenizer), "split_special_tokens": tokenizer.split_special_tokens}
            if content["backend"] is None:
                return None
        elif kind in IN_PYTHON:
            names = tokenizer.vocab_files_names
            pieces = names.get("spm_file") or names["source_spm"]
            vocabulary = names.get("vocab_file") or names["vocab"]
            content = {"pieces": pieces, "vocabulary": vocabulary, "has_codes": IN_PYTHON[kind]}
            content |= {"added": tokenizer.get_added_vocab(), "unknown": tokenizer.unk_token_id}
        else:
            return None
        around = {}
        for source in self.languages.sources or {""}:
            (whole,) = self.encode(["a"], source or None)
            (inner,) = tokenizer(["a"], add_special_tokens=False)["input_ids"]
            start = next((n for n in range(len(whole)) if whole[n : n + len(inner)] == inner), 0)
            around[source] = whole[:start], whole[start + len(inner) :]
        settings = {name: getattr(self.generation, name, None) for name in GENERATION}
        return {
            **content,
            **{"sources": hash_sources(folder), "around": around, "generation": settings, "positions": self.positions},
            **{"targets": {code: asdict(target) for code, target in self.languages.targets.items()}},
            **{"pad_id": self.pad_id, "source_lang": self.source_lang, "side": tokenizer.truncation_side},
            "special": tokenizer.all_special_ids,
        }

    def is_alike(self, other: "Prepared") -> bool:
        """Whether another encodes odd texts as this one, and decodes each token and those of the texts."""
        texts = [*ODD, *(f"a {token}b {token} c" for token in self._tokenizer.get_added_vocab())]
        sources: list[str | None] = [*sorted(self.languages.sources)[:2]] or [None]
        rows = [*([number] for number in self._tokenizer.get_vocab().values()), *self.encode(texts, sources[0])]
        return self.decode(rows) == other.decode(rows) and all(
            self.encode(texts, source, most) == other.encode(texts, source, most)
            for source in sources
            for most in (None, 5)
        )


class Prepared:
    """Encodes and decodes with tokenizers or sentencepiece, and has no state."""

    def __init__(self, folder: Path, content: Json) -> None:
        self._around, self._is_left, self._special = content["around"], content["side"] == "left", content["special"]
        self.generation, self.positions = SimpleNamespace(**content["generation"]), content["positions"]
        targets = {code: Target(**target) for code, target in content["targets"].items()}
        self.languages = Languages(frozenset(self._around) - {""}, targets)
        self.pad_id, self.source_lang = content["pad_id"], content["source_lang"]
        self.decode: Callable[[Any], list[str]]  #: see `Original.decode`
        self._encode: Callable[[Sequence[str]], list[list[int]]]
        if backend := content.get("backend"):
            tokenizer = read_backend(backend)
            tokenizer.encode_special_tokens = content["split_special_tokens"]
            self._encode = lambda texts: [
                each.ids for each in tokenizer.encode_batch(list(texts), add_special_tokens=False)
            ]
            self.decode = lambda rows: tokenizer.decode_batch(_lists(rows), skip_special_tokens=True)
        else:
            pieces = _Pieces(folder, content)
            self._encode, self.decode = pieces.encode, pieces.decode

    def encode(self, texts: Sequence[str], source: str | None, most: int | None = None) -> list[list[int]]:
        """See `Original.encode`."""
        before, after = self._around[source or ""]
        rows = self._encode(texts)
        if most is not None:
            room = max(0, most - len(before) - len(after))
            rows = [row[max(0, len(row) - room) :] if self._is_left else row[:room] for row in rows]
        return [[*before, *row, *after] for row in rows]


class _Pieces:
    """sentencepiece between the special tokens of a text, as the tokenizers of IN_PYTHON."""

    def __init__(self, folder: Path, content: Json) -> None:
        import sentencepiece  # noqa: PLC0415

        self._model = sentencepiece.SentencePieceProcessor(model_file=str(folder / content["pieces"]))
        self._ids: dict[str, int] = read_json(folder / content["vocabulary"])
        self._added, self._has_codes = content["added"], content["has_codes"]
        self._unknown: int = content["unknown"]
        self._tokens = {number: token for known in (self._ids, self._added) for token, number in known.items()}
        self._skipped = frozenset(content["special"])
        longest_first = sorted(self._added, key=len, reverse=True)
        self._divide = re.compile(f"({'|'.join(map(re.escape, longest_first))})").split

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[number for part in self._divide(text) if part for number in self._encode(part)] for text in texts]

    def _encode(self, part: str) -> list[int]:
        if part in self._added:
            return [self._added[part]]
        end = part.find("<<") + 2 if self._has_codes and part.startswith(">>") and "<<" in part else 0
        pieces = [*([part[:end]] if end else []), *self._model.encode(part[end:], out_type=str)]
        return [self._ids.get(piece, self._unknown) for piece in pieces]

    def decode(self, rows: object) -> list[str]:
        kept = ([self._tokens.get(number, "") for number in row if number not in self._skipped] for row in _lists(rows))
        return [self._model.decode(pieces).strip() for pieces in kept]


def _lists(rows: Any) -> list[list[int]]:
    return rows.tolist() if hasattr(rows, "tolist") else rows  # type: ignore[no-any-return]


def write_translator(folder: Path) -> bool:
    """Write prepared.json beside a checkpoint's files, unless only transformers encodes and decodes as it does."""
    original = Original(folder, trust_remote_code=False)
    content = original.describe(folder)
    text = json.dumps(content)  # as it is read: JSON turns tuples into lists
    if content is None or not original.is_alike(Prepared(folder, json.loads(text))):
        return False
    (folder / PREPARED).write_text(text, encoding="utf-8")
    return True


def read_translator(folder: Path, *, trust_remote_code: bool) -> Original | Prepared:
    """Read a checkpoint's tokenizer and settings, with transformers unless they are prepared and unchanged."""
    content = {} if trust_remote_code else read_json(folder / PREPARED)
    if content and content["sources"] == hash_sources(folder):
        return Prepared(folder, content)
    return Original(folder, trust_remote_code=trust_remote_code)


def read_generation(folder: Path, *, trust_remote_code: bool) -> tuple[Any, int | None]:
    """Read a checkpoint's GenerationConfig, and the number of its decoder's positions, or None without a limit."""
    transformers = import_transformers()
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, local_files_only=True)
    has_own = (folder / "generation_config.json").is_file()
    generation = (
        transformers.GenerationConfig.from_pretrained(folder, local_files_only=True)
        if has_own
        else transformers.GenerationConfig.from_model_config(config)
    )
    return generation, getattr(config, "max_position_embeddings", None)
