"""What the files of embedding models and cross-encoders say beyond config.json, as sentence-transformers writes them.

config_sentence_transformers.json -> Prompts; activation, of a cross-encoder's scores
config.json                       -> Dimensions, the sizes that a vector may be cut to; activation
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from handlers.errors import InvalidBody, InvalidInput, InvalidOption, shown

SENTENCE_CONFIG = "config_sentence_transformers.json"
# The names that sentence-transformers looks for where a text is a query or a document, in this order.
PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage", "corpus")}


def read_json(path: Path) -> Any:
    """Read a file of JSON; an empty mapping if it does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _json(path: Path) -> Mapping[str, Any]:
    content = read_json(path)
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True, slots=True)
class Prompts:
    """What a model wants in front of a text.

    Attributes:
        texts: the prompts, by name.
        default: the name of the one that a text has where its request does not say; None for none.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    @classmethod
    def read(cls, folder: Path) -> "Prompts":
        """Read a model's own."""
        config = _json(folder / SENTENCE_CONFIG)
        texts = {name: text for name, text in (config.get("prompts") or {}).items() if isinstance(text, str)}
        return cls(texts, config.get("default_prompt_name"))

    def of(self, name: str | None, input_type: str | None) -> str:
        """Find the prompt of one text; "" where it has none.

        Args:
            name: the prompt's, if the request says it.
            input_type: `query` or `document`; a model without a prompt for these takes both as they are.

        Raises:
            InvalidOption: there is no prompt of that name.
        """
        if name is not None and name not in self.texts:
            raise InvalidOption(f"prompt_name: no {shown(name)}; this model has {', '.join(self.texts) or 'none'}.")
        names = (name,) if name is not None else (*PROMPT_NAMES.get(input_type or "", ()), self.default or "")
        return next((self.texts[each] for each in names if each in self.texts), "")


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The option `dimensions`: the first numbers of a vector, of a model that was trained for that (Matryoshka).

    Attributes:
        size: of a whole vector.
        sizes: what it may be cut to.
    """

    size: int
    sizes: Sequence[int] = ()

    @classmethod
    def read(cls, folder: Path, size: int, *, is_any: bool) -> "Dimensions":
        """Read what the vectors of a model may be cut to.

        Args:
            folder: the model's; its config.json may have `matryoshka_dimensions`, or `is_matryoshka: true` for any.
            size: of a whole vector.
            is_any: whether its owner allows any.
        """
        config = _json(folder / "config.json")
        if is_any or config.get("is_matryoshka") is True:
            return cls(size, range(1, size + 1))
        return cls(size, [each for each in config.get("matryoshka_dimensions") or () if isinstance(each, int)])

    def check(self, wanted: int | None) -> None:
        """Check what a client wants; None for whole vectors.

        Raises:
            InvalidOption: the model's vectors are not cut to that.
        """
        if wanted is None or wanted == self.size or (wanted < self.size and wanted in self.sizes):
            return
        if wanted > self.size:
            raise InvalidOption(f"dimensions: {wanted}; this model's vectors have {self.size}.")
        if not self.sizes:
            raise InvalidOption(
                f"dimensions: only {self.size}; neither this model nor its archive (is_matryoshka) allows others."
            )
        raise InvalidOption(f"dimensions: must be one of {', '.join(map(str, self.sizes))}.")

    def cut(self, vectors: NDArray[np.float32], wanted: Iterable[int | None]) -> list[NDArray[np.float32]]:
        """Cut each row of `vectors`, (B, D), to what its client wants, and scale it to unit length."""
        rows = zip(vectors, wanted, strict=True)
        return [row if size in (None, self.size) else _unit(row[:size]) for row, size in rows]


def _unit(part: NDArray[np.float32]) -> NDArray[np.float32]:
    return (part / max(float(np.linalg.norm(part)), 1e-12)).astype(np.float32)


def activation(folder: Path) -> torch.nn.Module:
    """Find what makes a score of a cross-encoder's one logit; the sigmoid where its files say nothing.

    sentence-transformers 6 looks in these places, in this order, and trusts no names but torch's.
    """
    config = _json(folder / "config.json")
    names = (
        _json(folder / SENTENCE_CONFIG).get("activation_fn"),
        (config.get("sentence_transformers") or {}).get("activation_fn"),
        config.get("sbert_ce_default_activation_function"),
    )
    name = next((each for each in names if isinstance(each, str)), "")
    return torch_module(name) or torch.nn.Sigmoid()


def torch_module(name: str) -> torch.nn.Module | None:
    """Make the module of torch.nn that a model's files name; None if the name is another one."""
    found = getattr(torch.nn, name.rpartition(".")[2], None) if name.startswith("torch.") else None
    return found() if isinstance(found, type) and issubclass(found, torch.nn.Module) else None


def token_ids(value: Any) -> list[int] | None:
    """Return the token ids that stand in the place of a text; None where it is something else."""
    is_ids = isinstance(value, list) and value and all(type(each) is int for each in value)
    return value if is_ids else None


def refused() -> InvalidInput:
    """Return the error for token ids of an archive without the setting `token_ids`."""
    return InvalidBody(
        "text: token ids, which this archive does not accept (its setting token_ids); send texts. "
        "LangChain's OpenAIEmbeddings sends texts with check_embedding_ctx_length=False."
    )
