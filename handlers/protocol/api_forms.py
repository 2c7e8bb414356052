"""The answers of the APIs of embedding servers, and their errors. Pure.

results of a request's items -> Embeddings, Ranking (OpenAI's, Cohere's and TEI's forms) -> Response
"""

import base64
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from handlers.aliases import Array, Json
from handlers.errors import ItemError, WrongOutput
from handlers.probabilities import sigmoid
from handlers.protocol.responses import Response, encode, encode_padded
from handlers.protocol.statuses import meaning_of
from handlers.protocol.tensors import quantize
from handlers.protocol.wire import SHOULD_RETRY_HEADER

CONFLICT = 409  # the status of another vector space
BUSY = 503  # the status of an overload, which clients may retry
_FIELD = re.compile(r"(?:Options: )?([A-Za-z_.]+): ")  # the start of a message that names a field


def error_document(status: int, code: str, message: str, param: str | None, api: str = "") -> Mapping[str, object]:
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
        # OpenAI's clients would send these again.
        is_final = error.code == CONFLICT or (error.code >= 500 and error.code != BUSY)
        final = {SHOULD_RETRY_HEADER: "false"} if is_final else {}
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
    dtype: str = "float"  # one of tensors.VECTOR_DTYPES
    ranges: Array | None = None  # of int8 and uint8
    is_scaled: bool = False  # to unit length
    is_late: bool = False  # whether the items are texts with a vector for each chunk
    items = ("text", "image")
    key = "input"

    def vectors(self, results: Sequence[Any]) -> NDArray[np.float32]:
        """Return the vectors, (B, D)."""
        found = [each["dense_vecs"] if isinstance(each, Mapping) else each for each in results]
        vectors: NDArray[np.float32] = np.stack(found).astype("<f4", copy=False)
        if not np.isfinite(vectors).all():
            raise WrongOutput("embedding: the model returned NaN or infinity.")
        if self.is_scaled:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return vectors

    def document(self, results: Sequence[object]) -> Any:
        if self.is_late:
            results = [each["embedding"] for chunks in results for each in cast(Sequence[Any], chunks)]
        vectors = quantize(self.vectors(results), self.dtype, self.ranges)
        written = encode_base64(vectors) if self.is_base64 else list(vectors)
        if self.aliases.get("input") == "inputs":
            return written
        answer = embedding_list(written, self.model, self.tokens)
        for each, result in zip(answer["data"], results, strict=True):
            if isinstance(result, Mapping):  # a hybrid model's other parts
                each |= {name: part for name, part in result.items() if name != "dense_vecs"}
                encode([value for name, value in each.items() if name in result])  # rejects NaN
        return answer


@dataclass(frozen=True, slots=True)
class Sparse(Answer):
    """Weights of words, in the order of their texts."""

    is_pairs: bool = False  # text-embeddings-inference's list of a pair for each weight
    items = ("text",)
    key = "input"

    def document(self, results: Sequence[Any]) -> Any:
        found = [each.get("lexical_weights", each) for each in results]
        if not all(np.isfinite(each["values"]).all() for each in found):
            raise WrongOutput("values: the model returned NaN or infinity.")
        if not self.is_pairs:
            return embedding_list(found, self.model, self.tokens)
        names = {"indices": "index", "values": "value", "tokens": "token"}
        return [
            [dict(zip([names[each] for each in one], pair, strict=True)) for pair in zip(*one.values(), strict=True)]
            for one in found
        ]


@dataclass(frozen=True, slots=True)
class Pooling(Answer):
    """A vector for each token, as vLLM writes them: lists, or the bytes of all vectors of a text, row by row."""

    dtype: str = ""  # of base64, by numpy's name
    items = ("text",)
    key = "input"

    def document(self, results: Sequence[object]) -> Any:
        found = [check_matrix(each) for each in results]
        written = [encode_base64([each.astype(self.dtype)])[0] for each in found] if self.dtype else found
        data = [
            {"index": index, "object": "pooling", "data": each, **({"shape": found[index].shape} if self.dtype else {})}
            for index, each in enumerate(written)
        ]
        about = {"id": f"pool-{uuid.uuid4().hex}", "object": "list", "created": 0, "model": self.model}
        return {**about, "data": data, "usage": _usage(self.tokens)}


def check_matrix(result: object) -> NDArray[np.float32]:
    """Return the vectors of a text's tokens, (T, E) little-endian; WrongOutput if one is not finite."""
    matrix: NDArray[np.float32] = np.asarray(result["colbert_vecs"] if isinstance(result, Mapping) else result, "<f4")
    if not np.isfinite(matrix).all():
        raise WrongOutput("embedding: the model returned NaN or infinity.")
    return matrix


@dataclass(frozen=True, slots=True)
class Ranking(Answer):
    """Documents with their scores, best first."""

    top_n: int | None = None
    documents: Sequence[str] | None = None  # their texts, if the answer repeats them
    is_sigmoid: bool = False  # scores are logits, whose sigmoid the client expects
    items = ("document", "text")
    key = "documents"

    def score(self, results: Sequence[Any]) -> Array:
        return np.array([result["score"] for result in results])

    def document(self, results: Sequence[object]) -> Any:
        scores = self.score(results)
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


@dataclass(frozen=True, slots=True)
class LateRanking(Ranking):
    """Documents by MaxSim: each vector of the query meets its nearest one of the document. The query is the first."""

    is_mean: bool = False  # over the vectors of the query, and not their sum

    def pack(self, results: Sequence[object]) -> Response:
        if isinstance(error := results[0], ItemError):
            only = Answer(self.model, is_list=False, aliases=self.aliases)
            return only.pack([replace(error, message=error.message.replace("text:", "query:", 1))])
        errors = [each for each in results[1:] if isinstance(each, ItemError)]
        # Only the documents have an index in a message.
        return Answer.pack(self, results[1:] if errors else results)

    def score(self, results: Sequence[object]) -> Array:
        query, *documents = map(check_matrix, results)
        sums = [(query @ each.T).max(1).sum() if len(each) else 0.0 for each in documents]
        return np.array(sums) / (len(query) if self.is_mean else 1)


def embedding_list(written: Sequence[object], model: str, tokens: int) -> Json:
    """Return OpenAI's list of embeddings."""
    data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(written)]
    return {"object": "list", "data": data, "model": model, "usage": _usage(tokens)}


def encode_base64(vectors: Sequence[Array] | Array) -> list[str]:
    """Return the bytes of each row."""
    return [base64.b64encode(row.tobytes()).decode() for row in vectors]


def _usage(tokens: int) -> Mapping[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}
