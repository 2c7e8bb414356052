"""The answers of the APIs of embedding servers, and their errors. Pure.

results of a request's items -> Embeddings, Ranking (OpenAI's, Cohere's and TEI's forms) -> Response
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from handlers.errors import ItemError, WrongOutput
from handlers.probabilities import sigmoid
from handlers.protocol.quantization import quantize
from handlers.protocol.responses import Response, encode_padded
from handlers.protocol.statuses import meaning_of
from handlers.protocol.wire import SHOULD_RETRY_HEADER

BUSY = 503  # the status of an overload, which clients may retry
_FIELD = re.compile(r"(?:Options: )?([A-Za-z_.]+): ")  # the start of a message that names a field


def error_document(status: int, code: str, message: str, param: str | None, api: str = "") -> Mapping[str, Any]:
    """Return an error in OpenAI's form, or in Cohere's."""
    if api.startswith("cohere"):
        return {"message": message}
    return {"error": {"message": message, "type": meaning_of(status).openai, "param": param, "code": code}}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of both APIs."""

    model: str
    is_list: bool = True  # an error then names the index of its item
    tokens: int = 0  # of all items, as the model received them: special ones included, truncated ones not
    aliases: Mapping[str, str] = field(default_factory=dict)  # the client's names of fields by our own
    items: ClassVar[tuple[str, ...]] = ()  # the names of an item in the task's messages
    key: ClassVar[str] = ""  # the request's field with the items
    api: ClassVar[str] = ""  # the form of its errors; see `error_document`

    def with_tokens(self, tokens: int) -> "Answer":
        """Return a copy with the number of tokens of the request."""
        return replace(self, tokens=tokens)

    def pack(self, results: Sequence[object]) -> Response:
        # One failed item fails the request, as with OpenAI, and the message has the item's index.
        errors = [(index, result) for index, result in enumerate(results) if isinstance(result, ItemError)]
        if not errors:
            return Response(200, encode_padded(self.document(results)))
        index, error = errors[0]
        is_alone = len(errors) < len(results) or any(other != error for _, other in errors)
        message, param = self._named(error.message, index, is_alone=is_alone)
        document = error_document(error.code, error.type, message, param, self.api)
        final = {SHOULD_RETRY_HEADER: "false"} if error.code >= 500 and error.code != BUSY else {}
        return Response(error.code, encode_padded(document), headers=final)

    def document(self, results: Sequence[object]) -> Any:
        """Return the answer to a request without errors."""
        raise NotImplementedError

    def _named(self, message: str, index: int, *, is_alone: bool) -> tuple[str, str | None]:
        """Return a message with the request's name of the field, and the item's index if the error is the item's."""
        found = _FIELD.match(message)
        key = self.aliases.get(self.key, self.key)
        place = f"{key}[{index}]" if self.is_list else key
        if found and found[1] in self.items:
            return f"{place}: {message[found.end() :]}", key
        if found:
            name = self.aliases.get(found[1], found[1])
            return message.replace(found[1], name, 1), name
        return (f"{place}: {message}", key) if is_alone else (message, None)


@dataclass(frozen=True, slots=True)
class Embeddings(Answer):
    """Vectors, in the order of their texts."""

    is_base64: bool = False  # little-endian
    dtype: str = "float"  # one of quantization.DTYPES
    ranges: Any = None  # of int8 and uint8
    is_scaled: bool = False  # to unit length
    items = ("text", "image")
    key = "input"

    def vectors(self, results: Sequence[Any]) -> NDArray[np.float32]:
        """Return the vectors, (B, D)."""
        vectors: NDArray[np.float32] = np.stack(results).astype("<f4", copy=False)
        if not np.isfinite(vectors).all():
            raise WrongOutput("embedding: the model returned NaN or infinity.")
        if self.is_scaled:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return vectors

    def document(self, results: Sequence[object]) -> Any:
        vectors = quantize(self.vectors(results), self.dtype, self.ranges)
        written = encode_base64(vectors) if self.is_base64 else list(vectors)
        if self.aliases.get("input") == "inputs":
            return written
        data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(written)]
        return {"object": "list", "data": data, "model": self.model, "usage": _usage(self.tokens)}


@dataclass(frozen=True, slots=True)
class Ranking(Answer):
    """Documents with their scores, best first."""

    top_n: int | None = None
    documents: Sequence[str] | None = None  # their texts, if the answer repeats them
    is_sigmoid: bool = False  # scores are logits, whose sigmoid the client expects
    items = ("document", "text")
    key = "documents"

    def document(self, results: Sequence[Any]) -> Any:
        scores = np.array([result["score"] for result in results])
        if not np.isfinite(scores).all():
            raise WrongOutput("relevance_score: the model returned NaN or infinity.")
        scores = sigmoid(scores) if self.is_sigmoid else scores
        best = np.argsort(-scores, kind="stable")[: self.top_n].tolist()
        is_tei = self.aliases.get("documents") == "texts"
        ranked = [{"index": each, "score" if is_tei else "relevance_score": float(scores[each])} for each in best]
        if self.documents is not None:
            texts = [self.documents[index] for index in best]
            repeated = [{"text": text} if is_tei else {"document": {"text": text}} for text in texts]
            ranked = [each | own for each, own in zip(ranked, repeated, strict=True)]
        if is_tei:
            return ranked
        # Voyage's clients read `data`; without `top_k` nothing tells them from others.
        voyage = {"data": ranked} if self.top_n is None or self.aliases.get("top_n") == "top_k" else {}
        return {"model": self.model, "results": ranked, "usage": _usage(self.tokens), **voyage}


def encode_base64(vectors: NDArray[Any]) -> list[str]:
    """Return the bytes of each row."""
    return [base64.b64encode(row).decode() for row in vectors]


def _usage(tokens: int) -> Mapping[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}
