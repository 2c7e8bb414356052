"""HTTP APIs of embedding servers: OpenAI's embeddings and Cohere's, and rerank as Cohere and Jina have it. Pure.

    X-Api: embeddings   {"model", "input": text | [text, ...] | [token, ...] | [[token, ...], ...], "encoding_format"}
                        Jina's: a text may be {"text": ...} or {"image": data URI}; infinity's: "modality": "image"
                        {"object": "list", "data": [{"object": "embedding", "index", "embedding"}], "model", "usage"}
    X-Api: rerank       {"model", "query", "documents": [text | {"text": text}, ...], "top_n", "return_documents"}
                        {"model", "results": [{"index", "relevance_score", "document"}], "usage"}, best first
    TEI's "inputs" and "texts" select its responses: [[number, ...], ...] and [{"index", "score", "text"}, ...]
    either, rejected     {"error": {"message", "type", "param", "code"}}
    X-Api: cohere-v1, cohere-v2: handlers.protocol.cohere
    X-Api: sparse       TEI's {"inputs"} -> [[{"index", "value"}, ...], ...]
    X-Api: pooling      vLLM's {"model", "input"} -> {"data": [{"object": "pooling", "data": [[number, ...], ...]}]}

The header names the API; the gateway sets it by the path. A text or a document is an item with the task's options. The
names are from OpenAI's documentation of POST /v1/embeddings and of errors, and from Cohere's of POST /v2/rerank.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from handlers.aliases import Json
from handlers.errors import EmptyInput, InvalidBody, InvalidInput, InvalidOption, ItemError, TooManyInstances
from handlers.protocol import cohere
from handlers.protocol.api_forms import Answer, Embeddings, LateRanking, Pooling, Ranking, Sparse
from handlers.protocol.bodies import check_count, parse_api
from handlers.protocol.requests import Payload, Request
from handlers.protocol.rows import Headers, Shape, body_of, check_space
from handlers.protocol.tensors import VECTOR_DTYPES
from handlers.protocol.wire import API_HEADER, APIS

Api = Literal["embeddings", "rerank", "sparse", "pooling"]

IGNORED = {"model", "user"}  # fields of clients that have no effect here
# Other clients' names of fields: Jina's, Voyage's and TEI's (text-embeddings-inference).
_TRUNCATION = {"truncate": "truncation", "truncation_direction": "truncation_side"}
ALIASES: Mapping[str, Mapping[str, str]] = {
    "embeddings": {
        **_TRUNCATION,
        "inputs": "input",
        "embedding_type": "output_dtype",
        "encoding_type": "output_dtype",
        "task": "input_type",
        "output_dimension": "dimensions",
    },
    "pooling": {},
    "sparse": {**_TRUNCATION, "inputs": "input", "task": "input_type"},
    "cohere": {"output_dimension": "dimensions", "max_tokens": "truncate_prompt_tokens"},
    "rerank": {**_TRUNCATION, "texts": "documents", "top_k": "top_n", "return_text": "return_documents"},
}
# Jina's field, and LlamaIndex's name of it: the type of numbers or their encoding, and maybe a list of one.
JINA_TYPES = ("embedding_type", "encoding_type")
# The only accepted value of fields that change an answer, besides `Hooks.only_values`. A document has one text.
ONLY_VALUES: Mapping[str, Mapping[str, object]] = {
    "embeddings": {},
    "rerank": {"rank_fields": ["text"]},
    "sparse": {},
    "pooling": {},
}
# The two sides of a search, by Cohere's, Voyage's and Jina's names.
INPUT_TYPES = {
    **dict.fromkeys(("query", "search_query", "retrieval.query"), "query"),
    **dict.fromkeys(("document", "search_document", "passage", "retrieval.passage"), "document"),
    **{name: name for name in ("classification", "clustering")},  # names of prompts
}

FLOATS = {"float32": "<f4", "float16": "<f2"}  # types of base64 by vLLM's names
INPUTS = {"text": "text", "image": "b64"}  # the task's fields by clients' names of an item's inputs
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")


def unpack(row: Mapping[str, object], headers: Headers, shape: Shape) -> Request:
    """Unpack one row whose client names one of the APIs; see `rows.unpack`."""
    api, _, version = headers[API_HEADER].partition("-v")
    aliases: dict[str, str] = {}
    try:
        check_space(headers, shape)
        if api not in ALIASES:
            raise InvalidOption(f"X-Api: must be one of {', '.join(sorted({*APIS.values()}))}.")
        # Words' weights are in OpenAI's form, too.
        own = "sparse" if api == "embeddings" and shape.api == "sparse" else "embeddings" if api == "cohere" else api
        if own not in (shape.api, *shape.also):
            raise InvalidBody(f"model: {shape.model.name} does not serve {api}.")
        _, body, _ = body_of(row, headers, shape.max_body_bytes)
        document = parse_api(body) if isinstance(body, bytes | bytearray | str) else body
        if not isinstance(document, dict):
            raise InvalidBody("The body must be a JSON object.")
        sent = {name: value for name, value in document.items() if value is not None and name not in IGNORED}
        check_count(sent)
        aliases |= _rename(sent, ALIASES[own if api == "sparse" else api])
        if own == "sparse" and api == "embeddings" and "input" in aliases:
            raise InvalidBody(f"model: {shape.model.name} has no vectors; send the request to /embed_sparse.")
        if own == "sparse":
            return _sparse(sent, shape, aliases, is_pairs=api == "sparse")
        if api == "pooling":
            return _pooling(sent, shape, aliases)
        if api == "rerank":
            return _rerank(sent, shape, aliases)
        return _embeddings(sent, shape, aliases, cohere.read(sent, aliases, version) if api == "cohere" else None)
    except InvalidInput as error:
        form = cohere.CohereEmbeddings if api == "cohere" else Answer
        return Request((ItemError.of(error),), form(shape.model.name, is_list=False, aliases=aliases))


def _rename(sent: Json, known: Mapping[str, str]) -> dict[str, str]:
    """Give a client's fields our own names; return the client's by our own."""
    renamed: dict[str, str] = {}
    for alias, name in known.items():
        if alias not in sent:
            continue
        value, own = sent.pop(alias), name
        if alias in JINA_TYPES:
            value = value[0] if isinstance(value, list) and len(value) == 1 else value
            own = "encoding_format" if value == "base64" else name
        # TEI's Left and Right.
        value = value.lower() if alias == "truncation_direction" and isinstance(value, str) else value
        if sent.setdefault(own, value) != value:
            raise InvalidOption(f"{alias}: differs from {own}; send one of them.")
        renamed[own] = alias
    return renamed


def _drop_neutral(sent: Json, shape: Shape) -> None:
    """Remove the fields that ask for the answer of this archive; InvalidOption if one asks for another."""
    only = {**ONLY_VALUES[shape.api or ""], **shape.only_values}
    for name in only.keys() & sent.keys():
        if json.dumps(sent.pop(name)) != json.dumps(only[name]):
            raise InvalidOption(f"{name}: must be {json.dumps(only[name])} for this archive, or omitted.")


def _embeddings(sent: Json, shape: Shape, aliases: Mapping[str, str], asked: cohere.Asked | None) -> Request:
    is_tei = asked is None and "inputs" in aliases.values()  # TEI scales vectors by default
    is_scaled = sent.pop("normalize", True) if is_tei else False
    is_fixed = "normalized" in shape.only_values or "dimensions" in sent
    if not isinstance(is_scaled, bool) or (not is_scaled and is_fixed and is_tei):
        raise InvalidOption("normalize: must be true; this archive, or `dimensions`, scales vectors to unit length.")
    _drop_neutral(sent, shape)
    encoding = sent.pop("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise InvalidOption("encoding_format: must be float or base64.")
    if (dtype := sent.pop("output_dtype", "float")) not in VECTOR_DTYPES:
        raise InvalidOption(f"output_dtype: must be one of {', '.join(VECTOR_DTYPES)}.")
    if shape.ranges is None and {"int8", "uint8"} & {dtype, *(asked.types if asked else ())}:
        name = "embedding_types" if asked else "output_dtype"
        raise InvalidOption(f"{name}: int8 and uint8 need ranges (setting int8_ranges), which this archive lacks.")
    is_late = sent.get("late_chunking") is True and asked is None
    if is_late and "spans" not in sent:
        sent |= _join_chunks(_required(sent, "input"), shape.max_request_items)
    elif sent.get("late_chunking") is False:
        del sent["late_chunking"]
    payloads, is_list = _texts(sent, shape)
    if asked is not None:
        own = cohere.CohereEmbeddings(shape.model.name, aliases=aliases, ranges=shape.ranges, asked=asked)
        return Request(payloads, own)
    form = Embeddings(shape.model.name, is_list, aliases=aliases, is_base64=encoding == "base64", is_scaled=is_scaled)
    form = replace(form, is_late=is_late)
    return Request(payloads, replace(form, dtype=dtype, ranges=shape.ranges))


def _join_chunks(given: object, most: int) -> dict[str, object]:
    """Make one text of a list of chunks, spaced if they are not, and their spans, as Jina's API reads `input`."""
    chunks = given if isinstance(given, list) else [given]
    _check_number("input", chunks, most)
    text, spans = "", []
    for at, chunk in enumerate(chunks):
        if not isinstance(chunk, str) or not chunk.strip():
            raise InvalidBody(f"input[{at}]: must be a string with a word, for late_chunking.")
        text += " " if text and not (text[-1].isspace() or chunk[0].isspace()) else ""
        spans.append([len(text), len(text) + len(chunk)])
        text += chunk
    return {"input": text, "spans": spans}


# A hybrid model's options by API: only the part that its response has.
PARTS = {"sparse": "return_sparse", "pooling": "return_colbert_vecs", "rerank": "return_colbert_vecs"}


def _only(api: str, shape: Shape) -> dict[str, bool]:
    """Return the options with which a hybrid model answers one API; none for other models."""
    return {"return_dense": False, PARTS[api]: True} if "sparse" in shape.also else {}


def _texts(sent: Json, shape: Shape) -> tuple[tuple[Payload | ItemError, ...], bool]:
    """Make an item of each text or image; also return whether they were a list."""
    given = _required(sent, "input")
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
    return tuple(text_or_image(each, modality, sent, shape) for each in texts), is_list


def _sparse(sent: Json, shape: Shape, aliases: Mapping[str, str], *, is_pairs: bool) -> Request:
    if sent.pop("encoding_format", "float") not in ("float", "base64"):  # OpenAI's clients ask for base64
        raise InvalidOption("encoding_format: must be float or base64; weights of words are not encoded.")
    payloads, is_list = _texts(sent | _only("sparse", shape), shape)
    return Request(payloads, Sparse(shape.model.name, is_list, aliases=aliases, is_pairs=is_pairs))


def _pooling(sent: Json, shape: Shape, aliases: Mapping[str, str]) -> Request:
    if sent.pop("task", "token_embed") not in ("token_embed", "encode"):  # vLLM's new and old name
        raise InvalidOption(f"task: must be token_embed; {shape.model.name} has a vector for each token.")
    encoding, dtype = sent.pop("encoding_format", "float"), sent.pop("embed_dtype", "float32")
    if encoding not in ("float", "base64") or dtype not in [*FLOATS]:
        raise InvalidOption(f"encoding_format: must be float or base64, and embed_dtype {' or '.join(FLOATS)}.")
    payloads, is_list = _texts(sent | _only("pooling", shape), shape)
    form = Pooling(shape.model.name, is_list, aliases=aliases, dtype=FLOATS[dtype] if encoding == "base64" else "")
    return Request(payloads, form)


def _rerank(sent: Json, shape: Shape, aliases: Mapping[str, str]) -> Request:
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
    repeated = documents if is_repeated else None
    if shape.api != "rerank":
        late = LateRanking(shape.model.name, aliases=aliases, top_n=top_n, documents=repeated, is_mean=shape.is_mean)
        # An item of the query and one of each document; their vectors are compared when the response is written.
        texts = [("query", query), *(("document", each) for each in documents)]
        sent |= _only("rerank", shape)
        return Request(tuple(Payload({"text": text}, {**sent, "input_type": kind}) for kind, text in texts), late)
    payloads = tuple(Payload({"query": query, "document": document}, sent) for document in documents)
    form = Ranking(shape.model.name, aliases=aliases, top_n=top_n, documents=repeated, is_sigmoid=is_sigmoid)
    return Request(payloads, form)


def _required(sent: Json, name: str) -> Any:
    if name not in sent:
        raise InvalidBody(f"{name}: missing.")
    return sent.pop(name)


def _check_number(name: str, items: Sequence[object], most: int) -> None:
    if not items:
        raise EmptyInput(f"{name}: must not be empty.")
    if len(items) > most:
        raise TooManyInstances(f"{name}: {len(items)} items; max_request_items is {most}.")


def modalities(shape: Shape) -> list[str]:
    """Return the kinds of items that a model accepts."""
    return [name for name, field in INPUTS.items() if field in shape.inputs]


def text_or_image(given: object, modality: str, options: Mapping[str, object], shape: Shape) -> Payload | ItemError:
    """Make an item of a text, an image, or an object with one of both."""
    try:
        known = modalities(shape)
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


def _base64(given: object) -> str:
    """Return the base64 of a data URI. Other URLs are rejected: a server must not fetch URLs for clients."""
    if not isinstance(given, str):
        raise InvalidBody("image: must be a data URI, or base64.")
    head, _, data = given.partition(",") if given[:5].lower() == "data:" else ("", "", given)
    if (head and not head.lower().endswith(";base64")) or _SCHEME.match(data):
        raise InvalidBody("image: this server fetches no URLs; send data:image/png;base64,... or base64.")
    return data
