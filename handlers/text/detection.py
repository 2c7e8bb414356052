"""Identify the language of a text with the fastText model that a translation archive may have.

text -> fastText -> label, score -> Detector -> the model's own code, or the configured one where the score is too low
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handlers.engines.fasttext import FastTextEngine
from handlers.errors import InvalidConfig, UnknownLanguage
from handlers.text.config import TranslationOptions
from handlers.text.inputs import Text
from handlers.text.languages import ModelCodes

# What a request says as `src_lang` to have it identified.
AUTO = "auto"
# The name of the detector's file in an archive, and its endings: fastText's own.
DETECTOR, SUFFIXES = "detector", (".ftz", ".bin")
LABEL_PREFIX = "__label__"
# So many characters of a text tell its language; fastText takes 0.14 ms for 1,000 and 5 ms for 50,000.
MOST_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Source:
    """The language that a text is translated from.

    Attributes:
        code: the model's own; None where its languages are fixed, or none is named.
        score: how certain the detector was; None where it was not asked.
    """

    code: str | None = None
    score: float | None = None

    @property
    def said(self) -> dict[str, Any]:
        """The fields of an answer for it; none where the detector was not asked."""
        return {} if self.score is None else {"src_lang": self.code, "src_lang_score": self.score}


@dataclass(frozen=True, slots=True)
class SourceText(Text[TranslationOptions]):
    """One item of translation.

    Attributes:
        source: the language that it is translated from.
    """

    source: Source = Source()


class Detector:
    """Identifies languages for one model. Any thread may ask."""

    def __init__(self, engine: FastTextEngine, sources: Collection[str], fallback: str | None) -> None:
        """Match the labels of a detector with the codes of a model.

        Args:
            engine: a fastText model for languages, with labels of ISO 639, or of NLLB (`fra_Latn`).
            sources: the translation model's codes, at least one.
            fallback: the code for a text whose language is not certain; None to refuse it.
        """
        self._engine, self._sources, self._fallback = engine, sources, fallback
        self._codes = ModelCodes(sources)

    def identify(self, text: str, min_score: float) -> Source:
        """Return the language of a text.

        Args:
            text: at least one character that is no white space.
            min_score: a score below it is not certain.

        Raises:
            UnknownLanguage: the model lacks it; or it is not certain, and there is no fallback.
        """
        # fastText takes a line break for the end of the text, and any white space for the same separator.
        line = " ".join(text.strip()[:MOST_CHARACTERS].split())
        outputs = self._engine.run({"texts": np.array([line], object), "top_k": np.array([1])})
        (labels,), (scores,) = outputs["labels"], outputs["scores"]
        label, score = next(zip(labels, scores, strict=True), ("und", 0.0))
        label = label.removeprefix(LABEL_PREFIX)
        if score < min_score:
            if self._fallback is None:
                raise UnknownLanguage(
                    f"src_lang: it may be {label}, with a score of {score:.2f}; min_score is {min_score:g}. Name it."
                )
            return Source(self._fallback, score)
        code = self._codes.find(label)
        if code is None:
            known = ", ".join(sorted(self._sources))
            raise UnknownLanguage(
                f"src_lang: the text is in {label}, with a score of {score:.2f}, which this model does not have; "
                f"known are {known}."
            )
        return Source(code, score)


def load_detector(folder: Path) -> FastTextEngine:
    """Load the detector of an archive.

    Raises:
        InvalidConfig: it has none, or no fastText model.
    """
    found = [path for suffix in SUFFIXES if (path := folder / f"{DETECTOR}{suffix}").is_file()]
    if not found:
        names = " and ".join(f"{DETECTOR}{suffix}" for suffix in SUFFIXES)
        raise InvalidConfig(f"detector: this archive lacks {names}; build it again")
    return FastTextEngine(found[0])
