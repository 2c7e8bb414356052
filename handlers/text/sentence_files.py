"""The files of embedding models and cross-encoders beside config.json, as sentence-transformers writes them.

config_sentence_transformers.json -> Prompts; read_activation, of a cross-encoder's scores
config.json                       -> Dimensions, the sizes that a vector may be cut to; read_activation
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.aliases import Json
from handlers.errors import InvalidOption, show_name
from handlers.probabilities import sigmoid

SENTENCE_CONFIG = "config_sentence_transformers.json"
# The names of prompts that sentence-transformers tries for a kind of text, in this order.
PROMPT_NAMES = {
    **{name: (name,) for name in ("query", "classification", "clustering")},
    "document": ("document", "passage", "corpus"),
}


def read_json(path: Path) -> Any:
    """Read a file of JSON; an empty mapping if it does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _read_mapping(path: Path) -> Json:
    content = read_json(path)
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prefixes that a model was trained with, by kind of text."""

    texts: Mapping[str, str] = field(default_factory=dict)  # by name
    default: str | None = None  # name of the prompt of a text whose request names none

    @classmethod
    def read(cls, folder: Path) -> "Prompts":
        config = _read_mapping(folder / SENTENCE_CONFIG)
        texts = {name: text for name, text in (config.get("prompts") or {}).items() if isinstance(text, str)}
        return cls(texts, config.get("default_prompt_name"))

    def find(self, name: str | None, input_type: str | None) -> str:
        """Find the prompt of one text; "" if it has none; InvalidOption if there is no prompt of that name."""
        if name is not None and name not in self.texts:
            known = ", ".join(self.texts) or "none"
            raise InvalidOption(f"prompt_name: {show_name(name)} is not a prompt of this model; it has {known}.")
        names = (name,) if name is not None else (*PROMPT_NAMES.get(input_type or "", ()), self.default or "")
        return next((self.texts[each] for each in names if each in self.texts), "")


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The option `dimensions`: the first numbers of a vector, for models trained so (Matryoshka)."""

    size: int  # numbers of a whole vector
    sizes: Sequence[int] = ()  # numbers that it may be cut to

    @classmethod
    def read(cls, folder: Path, size: int, *, is_any: bool) -> "Dimensions":
        """Read the sizes that a model's vectors may be cut to."""
        config = _read_mapping(folder / "config.json")
        if is_any or config.get("is_matryoshka") is True:
            return cls(size, range(1, size + 1))
        return cls(size, [each for each in config.get("matryoshka_dimensions") or () if isinstance(each, int)])

    def check(self, wanted: int | None) -> None:
        """Check the size that a client asks for, None for whole vectors; InvalidOption if it is not allowed."""
        if wanted is None or wanted == self.size or (wanted < self.size and wanted in self.sizes):
            return
        if wanted > self.size:
            raise InvalidOption(f"dimensions: {wanted}; at most {self.size}.")
        if not self.sizes:
            raise InvalidOption(
                f"dimensions: must be {self.size}; neither this model nor its archive (is_matryoshka) allows others."
            )
        raise InvalidOption(f"dimensions: must be one of {', '.join(map(str, self.sizes))}.")

    def cut(self, vectors: NDArray[np.float32], wanted: Iterable[int | None]) -> list[NDArray[np.float32]]:
        """Cut each row of `vectors`, (B, D), to the size of its client, and scale it to unit length."""
        rows = zip(vectors, wanted, strict=True)
        return [row if size in (None, self.size) else scale_to_unit(row[:size]) for row, size in rows]


def scale_to_unit(part: NDArray[np.float32]) -> NDArray[np.float32]:
    return (part / max(float(np.linalg.norm(part)), 1e-12)).astype(np.float32)


def read_activation(folder: Path) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Find a cross-encoder's function from logit to score where its library does; else the sigmoid."""
    config = _read_mapping(folder / "config.json")
    saved = _read_mapping(folder / SENTENCE_CONFIG) if (folder / "modules.json").is_file() else {}
    names = (
        saved.get("activation_fn"),
        (config.get("sentence_transformers") or {}).get("activation_fn"),
        config.get("sbert_ce_default_activation_function"),
    )
    name = next((each for each in names if isinstance(each, str)), "")
    kind = name.rpartition(".")[2] if name.startswith("torch.") else ""
    if kind in ("", "Sigmoid", "Identity"):
        return np.asarray if kind == "Identity" else sigmoid
    import torch  # noqa: PLC0415

    module = make_torch_module(name)
    return sigmoid if module is None else lambda logits: module(torch.from_numpy(logits)).numpy()


def make_torch_module(name: str) -> Any:
    """Make the module of torch.nn with a name from a model's files; None for any other name."""
    import torch  # noqa: PLC0415

    found = getattr(torch.nn, name.rpartition(".")[2], None) if name.startswith("torch.") else None
    return found() if isinstance(found, type) and issubclass(found, torch.nn.Module) else None


def read_token_ids(value: object) -> list[int] | None:
    """Return the token ids that a client sent as a text; None if it sent something else."""
    return value if isinstance(value, list) and value and all(type(each) is int for each in value) else None
