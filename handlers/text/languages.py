"""Tell each family of translation models its languages, in its own way. Pure.

tokenizer + generation config -> read_languages -> Languages: codes, and what to do for each

Marian (one pair)        nothing
Marian (many targets)    ">>fra<< " before the text
M2M100, NLLB, mBART      the tokenizer's `src_lang`; the target's token forced to come first
SeamlessM4T              the tokenizer's `src_lang`; generate(tgt_lang=...)
T5 and others            nothing: a task's name, where there is one, is part of the text
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from handlers.errors import UnknownOption

# Codes look like fra_Latn (NLLB) or fr_XX (mBART).
CODE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")


@dataclass(frozen=True, slots=True)
class Target:
    """What makes a model answer in one language.

    Attributes:
        prefix: what stands before the text.
        arguments: further arguments of generate().
    """

    prefix: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Languages:
    """The languages of one model, under its own codes.

    Attributes:
        sources: the codes that its tokenizer takes as `src_lang`; empty where there is no choice.
        targets: code -> what makes it the language of the answer; empty where there is no choice.
    """

    sources: frozenset[str] = frozenset()
    targets: Mapping[str, Target] = field(default_factory=dict)

    def check(self, src_lang: str | None, tgt_lang: str | None, text: str) -> None:
        """Check whether a text can be translated from one language to another.

        Args:
            src_lang, tgt_lang: the codes of the languages; None where nobody says.
            text: what is to be translated.

        Raises:
            UnknownOption: it cannot; the message names the languages that there are.
        """
        _check("src_lang", src_lang, self.sources)
        if tgt_lang is not None or not self.is_named_by(text):
            _check("tgt_lang", tgt_lang, self.targets.keys())

    def is_named_by(self, text: str) -> bool:
        """Say whether a text brings its target's prefix along, as callers of Marian may be used to."""
        return bool(self.prefix_of(text)[0])

    def prefix_of(self, text: str) -> tuple[str, str]:
        """Take a text apart: the target's prefix that it brings along, or nothing, and the rest."""
        for target in self.targets.values():
            token = target.prefix.strip()
            if token and text.startswith(token):
                return target.prefix, text[len(token) :].removeprefix(" ")
        return "", text


def _check(name: str, code: str | None, codes: Any) -> None:
    if code is None and not codes:
        return
    if not codes:
        raise UnknownOption(f"{name}: this model's languages are fixed.")
    if code not in codes:
        problem = "needed" if code is None else "not a language of this model"
        raise UnknownOption(f"{name}: {problem}; known are {', '.join(sorted(codes))}.")


def read_languages(tokenizer: Any, generation: Any) -> Languages:
    """Read from the model's own files which languages it has, and how it is told them.

    Args:
        tokenizer: the model's, of transformers.
        generation: the model's GenerationConfig.
    """
    prefixes = getattr(tokenizer, "supported_language_codes", None)
    if prefixes is not None:
        return Languages(targets={token[2:-2]: Target(prefix=f"{token} ") for token in prefixes})
    vocabulary = tokenizer.get_vocab()
    spoken = getattr(generation, "text_decoder_lang_to_code_id", None)
    if spoken is not None:
        sources = frozenset(code for code in spoken if f"__{code}__" in vocabulary)
        return Languages(sources, {code: Target(arguments={"tgt_lang": code}) for code in spoken})
    if hasattr(tokenizer, "get_lang_id"):
        ids = {code: tokenizer.get_lang_id(code) for code in tokenizer.lang_code_to_token}
    elif hasattr(tokenizer, "src_lang"):
        ids = {token: number for token, number in vocabulary.items() if CODE.fullmatch(token)}
    else:
        ids = {}
    return Languages(frozenset(ids), {c: Target(arguments={"forced_bos_token_id": i}) for c, i in ids.items()})
