"""Two HTTP APIs of embedding servers: OpenAI's embeddings, and rerank as Cohere and Jina have it. Pure.

    X-Api: embeddings   {"model", "input": text | [text, ...] | [token, ...] | [[token, ...], ...], "encoding_format"}
                        Jina's: a text may be {"text": ...} or {"image": data URI}; infinity's: "modality": "image"
                        {"object": "list", "data": [{"object": "embedding", "index", "embedding"}], "model", "usage"}
    X-Api: rerank       {"model", "query", "documents": [text | {"text": text}, ...], "top_n", "return_documents"}
                        {"model", "results": [{"index", "relevance_score", "document"}], "usage"}, best first
    TEI's "inputs" and "texts" select its responses: [[number, ...], ...] and [{"index", "score", "text"}, ...]
    either, refused     {"error": {"message", "type", "param", "code"}}

The header names the API; the gateway sets it by the path. A text or a document is an item with the task's options. The
names are from OpenAI's documentation of POST /v1/embeddings and of errors, and from Cohere's of POST /v2/rerank.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from handlers.errors import (
    EmptyInput,
    InvalidBody,
    InvalidInput,
    InvalidOption,
    ItemError,
    TooManyInstances,
    WrongOutput,
)
from handlers.probabilities import sigmoid
from handlers.protocol.bodies import check_count, parse_json
from handlers.protocol.embedding_inputs import INPUTS, modalities, text_or_image
from handlers.protocol.requests import Payload, Request
from handlers.protocol.responses import Reply, encode_padded
from handlers.protocol.rows import Headers, Shape, body_of

Api = Literal["embeddings", "rerank"]

HEADER = "X-Api"
# OpenAI's types of errors, by status.
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
# The type of all other errors below 500.
INVALID_REQUEST = "invalid_request_error"
# The type of all other errors from 500 on.
SERVER_ERROR = "server_error"
# With the value "false", OpenAI's clients do not retry a request that failed with 500 or more.
RETRY_HEADER = "X-Should-Retry"
# The status of an overload, which clients may retry.
BUSY = 503
# Fields of clients that have no effect here.
IGNORED = {"model", "user"}
# Other clients' names of fields: Jina's, Voyage's and TEI's (text-embeddings-inference).
ALIASES: Mapping[str, Mapping[str, str]] = {
    "embeddings": {
        "inputs": "input",
        "embedding_type": "encoding_format",
        "task": "input_type",
        "output_dimension": "dimensions",
    },
    "rerank": {"texts": "documents", "top_k": "top_n", "return_text": "return_documents"},
}
# The only accepted value of fields that change an answer, besides `Hooks.only_values`. A document has one text.
ONLY_VALUES: Mapping[str, Mapping[str, Any]] = {
    "embeddings": {"output_dtype": "float", "late_chunking": False},
    "rerank": {"rank_fields": ["text"]},
}
# The two sides of a search, by Cohere's, Voyage's and Jina's names.
INPUT_TYPES = {
    **dict.fromkeys(("query", "search_query", "retrieval.query"), "query"),
    **dict.fromkeys(("document", "search_document", "passage", "retrieval.passage"), "document"),
}
# The start of a message that names a field.
_FIELD = re.compile(r"(?:Options: )?([A-Za-z_.]+): ")


def error_document(status: int, code: str, message: str, param: str | None) -> Mapping[str, Any]:
    """Return an error in OpenAI's form."""
    kind = ERROR_TYPES.get(status, INVALID_REQUEST if status < 500 else SERVER_ERROR)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of both APIs."""

    model: str
    is_list: bool = True  # an error then names the index of its item
    tokens: int = 0  # of all items, as the model received them: special ones included, truncated ones not
    aliases: Mapping[str, str] = field(default_factory=dict)  # the client's names of fields by our own
    # The names of an item in the task's messages.
    items: ClassVar[tuple[str, ...]] = ()
    # The request's field with the items.
    key: ClassVar[str] = ""

    def with_tokens(self, tokens: int) -> "Answer":
        """Return a copy with the number of tokens of the request."""
        return replace(self, tokens=tokens)

    def pack(self, results: Sequence[Any]) -> Reply:
        # One failed item fails the request, as with OpenAI, and the message has the item's index.
        errors = [(index, result) for index, result in enumerate(results) if isinstance(result, ItemError)]
        if not errors:
            return Reply(200, encode_padded(self.document(results)))
        index, error = errors[0]
        is_alone = len(errors) < len(results) or any(other != error for _, other in errors)
        message, param = self._named(error.message, index, is_alone=is_alone)
        final = {RETRY_HEADER: "false"} if error.code >= 500 and error.code != BUSY else {}
        return Reply(error.code, encode_padded(error_document(error.code, error.type, message, param)), headers=final)

    def document(self, results: Sequence[Any]) -> Any:
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

    is_base64: bool = False  # float32, little-endian
    is_scaled: bool = False  # to unit length
    items = ("text", "image")
    key = "input"

    def document(self, results: Sequence[Any]) -> Any:
        vectors = np.stack(results).astype("<f4", copy=False)
        if not np.isfinite(vectors).all():
            raise WrongOutput("embedding: the model returned NaN or infinity.")
        if self.is_scaled:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        written = [base64.b64encode(row).decode() for row in vectors] if self.is_base64 else list(vectors)
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
        return {"model": self.model, "results": ranked, "usage": _usage(self.tokens)}


def _usage(tokens: int) -> Mapping[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def unpack(row: Mapping[str, Any], headers: Headers, shape: Shape) -> Request:
    """Unpack one row whose client names one of the APIs; see `rows.unpack`."""
    api = headers[HEADER.lower()]
    aliases: dict[str, str] = {}
    try:
        reader = _READERS.get(api)
        if reader is None:
            raise InvalidOption(f"{HEADER}: must be one of {', '.join(_READERS)}.")
        if api != shape.api:
            raise InvalidBody(f"model: {shape.model.name} does not serve {api}.")
        _, body, _ = body_of(row, headers, shape.max_body_bytes)
        document = parse_json(body) if isinstance(body, bytes | bytearray | str) else body
        if not isinstance(document, dict):
            raise InvalidBody("The body must be a JSON object.")
        sent = {name: value for name, value in document.items() if value is not None and name not in IGNORED}
        check_count(sent)
        aliases |= _rename(sent, ALIASES[api])
        return reader(sent, shape, aliases)
    except InvalidInput as error:
        return Request((ItemError.of(error),), Answer(shape.model.name, is_list=False, aliases=aliases))


def _rename(sent: dict[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """Give a client's fields our own names; return the client's by our own."""
    found = {alias: name for alias, name in known.items() if alias in sent}
    for alias, name in found.items():
        value = sent.pop(alias)
        # Jina's `embedding_type` may be a list.
        value = value[0] if alias == "embedding_type" and isinstance(value, list) and len(value) == 1 else value
        if sent.setdefault(name, value) != value:
            raise InvalidOption(f"{alias}: differs from {name}; send one of them.")
    return {name: alias for alias, name in found.items()}


def _drop_neutral(sent: dict[str, Any], shape: Shape) -> None:
    """Remove the fields that ask for the answer of this archive; InvalidOption if one asks for another."""
    only = {**ONLY_VALUES[shape.api or ""], **shape.only_values}
    for name in only.keys() & sent.keys():
        if json.dumps(sent.pop(name)) != json.dumps(only[name]):
            raise InvalidOption(f"{name}: must be {json.dumps(only[name])} for this archive, or omitted.")


def _embeddings(sent: dict[str, Any], shape: Shape, aliases: Mapping[str, str]) -> Request:
    # TEI scales vectors by default.
    is_scaled = sent.pop("normalize", True) if "inputs" in aliases.values() else False
    is_fixed = "normalized" in shape.only_values or "dimensions" in sent
    if not isinstance(is_scaled, bool) or (not is_scaled and is_fixed and "inputs" in aliases.values()):
        raise InvalidOption("normalize: must be true; this archive, or `dimensions`, scales vectors to unit length.")
    _drop_neutral(sent, shape)
    given = _required(sent, "input")
    encoding = sent.pop("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise InvalidOption("encoding_format: must be float or base64.")
    if (side := sent.get("input_type")) is not None:
        sent["input_type"] = INPUT_TYPES.get(side, side) if isinstance(side, str) else side
    # A list of numbers is one text as token ids.
    is_list = isinstance(given, list) and not (given and isinstance(given[0], int))
    texts = given if is_list else [given]
    _check_number("input", texts, shape.max_request_items)
    # A model whose only inputs are images needs no modality.
    modality = sent.pop("modality", "text" if "text" in shape.inputs else "image")
    if not isinstance(modality, str) or INPUTS.get(modality) not in shape.inputs:
        raise InvalidOption(f"modality: must be {' or '.join(modalities(shape))}.")
    payloads = tuple(text_or_image(each, modality, sent, shape) for each in texts)
    form = Embeddings(shape.model.name, is_list, aliases=aliases, is_base64=encoding == "base64", is_scaled=is_scaled)
    return Request(payloads, form)


def _rerank(sent: dict[str, Any], shape: Shape, aliases: Mapping[str, str]) -> Request:
    is_raw = shape.only_values.get("raw_scores")
    # TEI's scores are sigmoids by default.
    is_sigmoid = is_raw is True and "texts" in aliases.values() and sent.get("raw_scores", False) is False
    if is_sigmoid:
        sent.pop("raw_scores", None)
    elif is_raw is None and "texts" in aliases.values():
        raise InvalidOption("texts: the scores of this model are neither sigmoids nor logits; send `documents`.")
    _drop_neutral(sent, shape)
    query, given = _required(sent, "query"), _required(sent, "documents")
    if not isinstance(given, list):
        raise InvalidBody("documents: must be a list of texts.")
    _check_number("documents", given, shape.max_request_items)
    top_n = sent.pop("top_n", None)
    if top_n is not None and (type(top_n) is not int or top_n < 1):
        raise InvalidOption("top_n: must be a whole number above 0.")
    is_repeated = sent.pop("return_documents", False)
    if not isinstance(is_repeated, bool):
        raise InvalidOption("return_documents: must be true or false.")
    documents: list[Any] = [each.get("text") if isinstance(each, dict) else each for each in given]
    payloads = tuple(Payload({"query": query, "document": document}, sent) for document in documents)
    repeated = documents if is_repeated else None
    form = Ranking(shape.model.name, aliases=aliases, top_n=top_n, documents=repeated, is_sigmoid=is_sigmoid)
    return Request(payloads, form)


_READERS: Mapping[str, Callable[[dict[str, Any], Shape, Mapping[str, str]], Request]] = {
    "embeddings": _embeddings,
    "rerank": _rerank,
}


def _required(sent: dict[str, Any], name: str) -> Any:
    if name not in sent:
        raise InvalidBody(f"{name}: missing.")
    return sent.pop(name)


def _check_number(name: str, items: Sequence[Any], most: int) -> None:
    if not items:
        raise EmptyInput(f"{name}: must not be empty.")
    if len(items) > most:
        raise TooManyInstances(f"{name}: {len(items)} items; max_request_items is {most}.")
