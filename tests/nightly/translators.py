"""Tiny seeded checkpoints of the translation families that the nightly sweep builds."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests import tiny_seq2seq

# Families with languages, and what the archive says of them.
LANGUAGES = {"src_lang": "eng", "tgt_lang": "fra"}
TRANSLATORS: dict[str, tuple[Callable[[Path], Path], Mapping[str, Any]]] = {
    "marian": (tiny_seq2seq.marian, {}),
    "marian:languages": (partial(tiny_seq2seq.marian, targets=("fra", "deu")), {"tgt_lang": "fra"}),
    "m2m_100": (tiny_seq2seq.m2m100, {"src_lang": "en", "tgt_lang": "fr"}),
    "nllb": (tiny_seq2seq.nllb, {"src_lang": "eng_Latn", "tgt_lang": "fra_Latn"}),
    "seamless_m4t": (tiny_seq2seq.seamless, LANGUAGES),
    "seamless_m4t_v2": (partial(tiny_seq2seq.seamless, is_v2=True), LANGUAGES),
    **{kind.lower(): (partial(tiny_seq2seq.t5, kind=kind), {}) for kind in ("T5", "MT5", "UMT5")},
    **{
        kind.lower(): (partial(tiny_seq2seq.bart, kind=kind), {})
        for kind in ("Bart", "MBart", "Pegasus", "Mvp", "PLBart", "Blenderbot", "PegasusX", "LED")
    },
}
