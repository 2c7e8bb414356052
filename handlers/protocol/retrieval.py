"""Two HTTP APIs of embedding servers: OpenAI's embeddings, and rerank as Cohere and Jina have it. Pure.

    X-Api: embeddings   {"model", "input": text | [text, ...] | [token, ...] | [[token, ...], ...], "encoding_format"}
                        Jina's: a text may be {"text": ...} or {"image": data URI}; infinity's: "modality": "image"
                        {"object": "list", "data": [{"object": "embedding", "index", "embedding"}], "model", "usage"}
    X-Api: rerank       {"model", "query", "documents": [text | {"text": text}, ...], "top_n", "return_documents"}
                        {"model", "results": [{"index", "relevance_score", "document"}], "usage"}, best first
    either, refused     {"error": {"message", "type", "param", "code"}}

The header names the API; the gateway sets it by the path. A text or a document is an item with the task's options. The
names are from OpenAI's documentation of POST /v1/embeddings and of errors, and from Cohere's of POST /v2/rerank.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, cast

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
from handlers.protocol.bodies import check_count, parse_json
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
# Jina's and Voyage's names of fields that another API has.
ALIASES: Mapping[str, Mapping[str, str]] = {
    "embeddings": {"embedding_type": "encoding_format", "task": "input_type", "output_dimension": "dimensions"},
    "rerank": {"top_k": "top_n"},
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
# The task's fields by clients' names of an item's inputs.
INPUTS = {"text": "text", "image": "b64"}
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")
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

    def document(self, results: Sequence[Any]) -> Mapping[str, Any]:
        """Return the answer to a request without errors."""
        raise NotImplementedError

    def _named(self, message: str, index: int, *, is_alone: bool) -> tuple[str, str | None]:
        """Return a message with the request's name of the field, and the item's index if the error is the item's."""
        found = _FIELD.match(message)
        place = f"{self.key}[{index}]" if self.is_list else self.key
        if found and found[1] in self.items:
            return f"{place}: {message[found.end() :]}", self.key
        if found:
            name = self.aliases.get(found[1], found[1])
            return message.replace(found[1], name, 1), name
        return (f"{place}: {message}", self.key) if is_alone else (message, None)


@dataclass(frozen=True, slots=True)
class Embeddings(Answer):
    """Vectors, in the order of their texts."""

    is_base64: bool = False  # float32, little-endian
    items = ("text", "image")
    key = "input"

    def document(self, results: Sequence[Any]) -> Mapping[str, Any]:
        vectors = np.stack(results).astype("<f4", copy=False)
        if not np.isfinite(vectors).all():
            raise WrongOutput("embedding: the model returned NaN or infinity.")
        written = [base64.b64encode(row).decode() for row in vectors] if self.is_base64 else list(vectors)
        data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(written)]
        return {"object": "list", "data": data, "model": self.model, "usage": _usage(self.tokens)}


@dataclass(frozen=True, slots=True)
class Ranking(Answer):
    """Documents with their scores, best first."""

    top_n: int | None = None
    documents: Sequence[str] | None = None  # their texts, if the answer repeats them
    items = ("document", "text")
    key = "documents"

    def document(self, results: Sequence[Any]) -> Mapping[str, Any]:
        scores = np.array([result["score"] for result in results])
        if not np.isfinite(scores).all():
            raise WrongOutput("relevance_score: the model returned NaN or infinity.")
        best = np.argsort(-scores, kind="stable")[: self.top_n].tolist()
        ranked = [{"index": index, "relevance_score": float(scores[index])} for index in best]
        if self.documents is not None:
            ranked = [{**each, "document": {"text": self.documents[each["index"]]}} for each in ranked]
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
        _drop_neutral(sent, {**ONLY_VALUES[api], **shape.only_values})
        request = reader(sent, shape)
        request.form = replace(cast(Answer, request.form), aliases=aliases)
        return request
    except InvalidInput as error:
        return Request((ItemError.of(error),), Answer(shape.model.name, is_list=False, aliases=aliases))


def _rename(sent: dict[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """Give a client's fields our own names; return the client's by our own."""
    found = {alias: name for alias, name in known.items() if alias in sent}
    for alias, name in found.items():
        value = sent.pop(alias)
        # Jina's `embedding_type` may be a list.
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        if sent.setdefault(name, value) != value:
            raise InvalidOption(f"{alias}: differs from {name}; send one of them.")
    return {name: alias for alias, name in found.items()}


def _drop_neutral(sent: dict[str, Any], only: Mapping[str, Any]) -> None:
    """Remove the fields that ask for the answer of this archive; InvalidOption if one asks for another."""
    for name in only.keys() & sent.keys():
        if json.dumps(sent.pop(name)) != json.dumps(only[name]):
            raise InvalidOption(f"{name}: must be {json.dumps(only[name])} for this archive, or omitted.")


def _embeddings(sent: dict[str, Any], shape: Shape) -> Request:
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
        raise InvalidOption(f"modality: must be {' or '.join(_modalities(shape))}.")
    payloads = tuple(_text_or_image(each, modality, sent, shape) for each in texts)
    return Request(payloads, Embeddings(shape.model.name, is_list, is_base64=encoding == "base64"))


def _modalities(shape: Shape) -> list[str]:
    return [name for name, field in INPUTS.items() if field in shape.inputs]


def _text_or_image(given: Any, modality: str, options: Mapping[str, Any], shape: Shape) -> Payload | ItemError:
    """Make an item of a text, an image, or an object with one of both."""
    try:
        known = _modalities(shape)
        if isinstance(given, dict):
            if len(given) != 1 or not given.keys() <= set(known):
                shapes = " or ".join(f'{{"{name}": ...}}' for name in known)
                raise InvalidBody(f"{modality}: must be a string or {shapes}.")
            ((modality, given),) = given.items()
        elif isinstance(given, str) and given.startswith("data:image/") and "image" in known:
            modality = "image"
        return Payload({INPUTS[modality]: _base64(given) if modality == "image" else given}, options)
    except InvalidInput as error:
        return ItemError.of(error)


def _base64(given: Any) -> str:
    """Return the base64 of a data URI. Other URLs are refused: a server must not fetch URLs for clients."""
    if not isinstance(given, str):
        raise InvalidBody("image: must be a data URI, or base64.")
    head, _, data = given.partition(",") if given[:5].lower() == "data:" else ("", "", given)
    if (head and not head.lower().endswith(";base64")) or _SCHEME.match(data):
        raise InvalidBody("image: this server fetches no URLs; send data:image/png;base64,... or base64.")
    return data


def _rerank(sent: dict[str, Any], shape: Shape) -> Request:
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
    return Request(payloads, Ranking(shape.model.name, top_n=top_n, documents=documents if is_repeated else None))


_READERS: Mapping[str, Callable[[dict[str, Any], Shape], Request]] = {"embeddings": _embeddings, "rerank": _rerank}


def _required(sent: dict[str, Any], name: str) -> Any:
    if name not in sent:
        raise InvalidBody(f"{name}: missing.")
    return sent.pop(name)


def _check_number(name: str, items: Sequence[Any], most: int) -> None:
    if not items:
        raise EmptyInput(f"{name}: must not be empty.")
    if len(items) > most:
        raise TooManyInstances(f"{name}: {len(items)} items; max_request_items is {most}.")
