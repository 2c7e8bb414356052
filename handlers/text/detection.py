"""Identify the language of a text with the fastText model that a translation archive may contain.

text -> fastText -> label, score -> Detector -> the model's own code, or the configured one if the score is too low
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from handlers.aliases import Json
from handlers.engines.fasttext import FastTextEngine
from handlers.errors import InvalidConfig, UnknownLanguage
from handlers.text.config import TranslationOptions
from handlers.text.inputs import Text
from handlers.text.languages import ModelCodes

AUTO = "auto"  # the value of `src_lang` that has the language identified
DETECTOR = "detector"  # the name of the detector's file in an archive
# The endings of fastText's files.
SUFFIXES = (".ftz", ".bin")
LABEL_PREFIX = "__label__"
# Characters of a text that are enough to identify its language; fastText needs 0.14 ms for 1,000, 5 ms for 50,000.
MOST_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class SourceLanguage:
    code: str | None = None  # the model's own; None if its languages are fixed, or no language is named
    score: float | None = None  # of the detector; None if it did not run

    @property
    def fields(self) -> Json:
        """The fields of an answer; none if the detector did not run."""
        return {} if self.score is None else {"src_lang": self.code, "src_lang_score": self.score}


@dataclass(frozen=True, slots=True)
class SourceText(Text[TranslationOptions]):
    source: SourceLanguage = SourceLanguage()  # the language that it is translated from


class Detector:
    """Identifies languages for one model. Any thread may call it."""

    def __init__(self, engine: FastTextEngine, sources: Collection[str], fallback: str | None) -> None:
        """Match the labels of a detector with the codes of a model."""
        self._engine, self._sources, self._fallback = engine, sources, fallback
        self._codes = ModelCodes(sources)

    def identify(self, text: str, min_score: float) -> SourceLanguage:
        """Identify the language of a text that is not only white space; a score below `min_score` is not certain."""
        # For fastText a line break ends the text, and every white space separates words.
        line = " ".join(text.strip()[:MOST_CHARACTERS].split())
        outputs = self._engine.run({"texts": np.array([line], object), "top_k": np.array([1])})
        (labels,), (scores,) = outputs["labels"], outputs["scores"]
        label, score = next(zip(labels, scores, strict=True), ("und", 0.0))
        label = label.removeprefix(LABEL_PREFIX)
        if score < min_score:
            if self._fallback is None:
                raise UnknownLanguage(
                    f"src_lang: uncertain; {label} scores {score:.2f}, and min_score is {min_score:g}. Set src_lang."
                )
            return SourceLanguage(self._fallback, score)
        code = self._codes.find(label)
        if code is None:
            known = ", ".join(sorted(self._sources))
            raise UnknownLanguage(
                f"src_lang: {label}, identified with a score of {score:.2f}, is not a language of this model; "
                f"known are {known}."
            )
        return SourceLanguage(code, score)


def load_detector(folder: Path) -> FastTextEngine:
    """Load the detector of an archive; InvalidConfig if the archive lacks it."""
    found = [path for suffix in SUFFIXES if (path := folder / f"{DETECTOR}{suffix}").is_file()]
    if not found:
        names = " and ".join(f"{DETECTOR}{suffix}" for suffix in SUFFIXES)
        raise InvalidConfig(f"detector: this archive lacks {names}; build it again")
    return FastTextEngine(found[0])
