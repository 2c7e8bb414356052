"""OpenAPI 3.1 of a host: its routes, for its models. Pure.

the parts of a host, its models' metadata (handlers.protocol.metadata) -> describe -> the document of /openapi.json
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

from deploy.protocol.description import NAME, describe_server, find_only
from handlers.protocol import wire
from torchserve_client.payloads import Json

# Parts of hosts: those of the routes below that a host has.
FRONTEND = frozenset({"", "list"})
ONE_PROCESS = FRONTEND | {"node"}
GATEWAY = frozenset({"", "statistics"})


class Route(NamedTuple):
    method: str
    path: str  # {model} is each model's name
    summary: str
    part: str = ""  # of the host
    body: str = ""  # the request's form


# The end of a path below a model or a version -> its summary and part.
QUESTIONS = (
    ("", "Inputs and outputs", ""),
    ("/ready", "Readiness", ""),
    ("/config", "Triton's configuration", ""),
    ("/stats", "Triton's statistics", "statistics"),
)
ROUTES = (
    Route("get", "/ping", "Readiness, as SageMaker asks for it"),
    Route("get", "/v2/health/live", "Liveness"),
    Route("get", "/v2/health/ready", "Readiness"),
    Route("get", "/v2/health/deep", "Whether each model answers its own sample"),
    Route("get", "/v2", "Name, version and extensions of the server"),
    Route("get", "/v2/models", "Names of the models", "list"),
    Route("get", "/v2/models/stats", "Triton's statistics of all models", "statistics"),
    Route("get", "/v1/models", "OpenAI's list of the models"),
    Route("get", "/info", "text-embeddings-inference's description of the model of /embed or /rerank", "embedder"),
    Route("get", "/openapi.json", "This document"),
    Route("get", "/metrics", "Counters, in Prometheus' format", "node"),
    Route("get", "/models", "TorchServe's list of the models", "node"),
    Route("get", "/models/{model}", "TorchServe's description of the model", "node"),
    Route("post", "/predictions/{model}", "Predict", body="native"),
    Route("post", "/predictions/{model}/{version}", "Predict by a version", body="native"),
    Route("post", "/v1/models/{model}:predict", "Predict, in TensorFlow Serving's form", body="instances"),
    Route("post", "/v2/models/{model}/infer", "Predict, by the Open Inference Protocol", body="tensors"),
    Route("post", "/v2/models/{model}/versions/{version}/infer", "Predict by a version, with tensors", body="tensors"),
    Route("get", "/v1/models/{model}", "OpenAI's description of the model"),
    *(
        Route("get", f"/v2/models/{{model}}{version}{end}", words, part)
        for version in ("", "/versions/{version}")
        for end, words, part in QUESTIONS
    ),
    Route("post", "/invocations", "Predict, as SageMaker does", body="invocations"),
    *(Route("post", path, f"An embedding server's API ({api})", body=path) for path, api in wire.APIS.items()),
    Route("post", "/v2/repository/index", "States of the models", "repository", body="any"),
    Route("post", "/v2/repository/models/{model}/load", "Load the model", "repository", body="any"),
    Route("post", "/v2/repository/models/{model}/unload", "Unload the model", "repository", body="any"),
)

TEXT: Json = {"type": "string"}
TEXTS: Json = {"type": "array", "items": TEXT}
COUNT: Json = {"type": "integer", "minimum": 1}
FLAG: Json = {"type": "boolean"}
ENCODED: Json = {"enum": ["float", "base64"]}
ANY: Json = {"type": "array", "items": {}}  # generators of clients need the items
EITHER: Json = {"oneOf": [TEXT, ANY]}
# The fields of each API's request, the required ones first, with their number.
_RERANK: tuple[Json, int] = {"query": TEXT, "documents": ANY, "top_n": COUNT, "return_documents": FLAG}, 2
_COHERE: tuple[Json, int] = {"texts": TEXTS, "input_type": TEXT, "truncate": {"enum": ["NONE", "START", "END"]}}, 1
FIELDS: Mapping[str, tuple[Json, int]] = {
    "/v1/embeddings": ({"input": EITHER, "encoding_format": ENCODED, "dimensions": COUNT, "output_dtype": TEXT}, 1),
    "/embed": ({"inputs": EITHER, "normalize": FLAG, "truncate": FLAG}, 1),
    "/embed_sparse": ({"inputs": EITHER, "truncate": FLAG}, 1),
    "/pooling": ({"input": EITHER, "encoding_format": ENCODED}, 1),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank"), _RERANK),
    "/rerank": ({"query": TEXT, "texts": TEXTS, "raw_scores": FLAG, "return_text": FLAG}, 2),
    **dict.fromkeys(("/v1/embed", "/v2/embed"), _COHERE),
}
ERROR: Json = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
# TorchServe's form, or the Open Inference Protocol's and OpenAI's.
_ERRORS: Json = {"code": {"type": "integer"}, "type": TEXT, "message": TEXT, "error": {"type": ["string", "object"]}}
_SHAPE: Json = {"type": "array", "items": {"type": "integer"}}


def describe(models: Mapping[str, Json], parts: frozenset[str] | set[str], preferred: Sequence[str] = ()) -> Json:
    """Describe a host of `parts` by its models' metadata, each empty if it is unknown; it may have "versions"."""
    embeds = [each for each in ("/embed", "/rerank") if find_only(each, models, preferred)]
    parts = {*parts, *(["embedder"] if embeds else [])}
    paths: dict[str, Json] = {}
    for route in ROUTES:
        if route.part in parts:
            for path, operation in _operations(route, models, preferred):
                paths.setdefault(path, {})[route.method] = operation
    components = {"schemas": {"Error": {"type": "object", "properties": _ERRORS}}}
    info = {"title": NAME, "version": describe_server()["version"]}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def _operations(route: Route, models: Mapping[str, Json], preferred: Sequence[str]) -> Iterator[tuple[str, Json]]:
    if "{model}" in route.path:
        for name, model in models.items():
            versions = model.get("versions") or [each for each in [model.get("version")] if each]
            if versions or "{version}" not in route.path:
                parameters = [_parameter("version", "path", versions)] if "{version}" in route.path else []
                named = route.path.replace("{model}", quote(name, safe=""))
                yield named, {"tags": [name], **_operation(route, _body(route.body, model), parameters)}
    elif route.body in FIELDS:
        asked = wire.NAMELESS.get(route.body) or wire.APIS[route.body].replace("cohere-v2", "embeddings")
        found = {name: model for name, model in models.items() if asked in (model.get("apis") or [model.get("api")])}
        if found:
            content = _api(route.body, found, is_optional=bool(find_only(route.body, models, preferred)))
            yield route.path, _operation(route, content)
    elif route.body == "invocations":
        parameters = [_parameter("model_name", "query", [*models])]
        if models:
            only = next(iter(models.values())) if len(models) == 1 else {}
            yield route.path, _operation(route, _body("native", only), parameters)
    else:
        yield route.path, _operation(route, _body(route.body, {}))


def _parameter(name: str, place: str, values: Sequence[str]) -> Json:
    is_required = place == "path" or len(values) > 1
    return {"name": name, "in": place, "required": is_required, "schema": {"type": "string", "enum": values}}


def _operation(route: Route, content: Json, parameters: Sequence[Json] = ()) -> Json:
    body = {"requestBody": {"required": route.body != "any", "content": content}} if content else {}
    responses: dict[str, Json] = {"200": {"description": "The response"}, "default": {"description": "An error"}}
    if not route.path.endswith("}/ready"):  # whose response is a status
        kinds = {"text/plain": {"schema": TEXT}} if route.path == "/metrics" else {"application/json": {"schema": {}}}
        responses["200"]["content"], responses["default"]["content"] = kinds, ERROR
    return {"summary": route.summary, "parameters": [*parameters], **body, "responses": responses}


def _body(form: str, model: Json) -> Json:
    """Return the content of a request for one model, by its media types."""
    if not form:
        return {}
    if form == "any":
        return {"application/json": {"schema": {"type": "object"}}}
    if form == "tensors":
        return {"application/json": _tensors(model)}
    if not (item := model.get("item")):
        return {"application/json": {"schema": {}}, "*/*": {"schema": {}}}  # a handler of another project
    example = item.get("example")
    options = {name: _option(schema) for name, schema in model["options"].items()}
    own = {key: each for key, each in item.items() if key != "example"}
    own["properties"] = {**item["properties"], **options}
    listed = {"instances": {"type": "array", "items": own}}
    several = {"type": "object", "required": ["instances"], "properties": listed}
    if form == "instances":
        return {"application/json": {"schema": several, **_shown(example and {"instances": [example]})}}
    text = example["text"] if example and [*example] == ["text"] else None
    words = {"schema": TEXT, **_shown(text)}
    content = {media: words if media.startswith("text/") else {"schema": {}} for media in model["accepts"]}
    return {**content, "application/json": {"schema": {"anyOf": [own, several]}, **_shown(example)}}


def _option(schema: Json) -> Json:
    """Return the JSON Schema of an option, whose default may be null."""
    known = {key: value for key, value in schema.items() if (key, value) not in (("type", "any"), ("default", None))}
    return {**(ANY if known.get("type") == "array" else {}), **known}


def _shown(example: object) -> Json:
    return {} if example is None else {"example": example}


def _api(path: str, models: Mapping[str, Json], *, is_optional: bool) -> Json:
    """Return the content of a request of an embedding server's API; its example has the first model's own text."""
    fields, count = FIELDS[path]
    required = [*fields][:count] + ([] if is_optional else ["model"])
    properties = {"model": {"enum": [*models]}, **fields}
    schema = {"type": "object", "required": required, "properties": properties}
    name, model = next(iter(models.items()))
    shown = (model.get("item") or {}).get("example") or {}
    if not (texts := [text for text in shown.values() if isinstance(text, str)]):
        return {"application/json": {"schema": schema}}
    text, query = shown.get("document", texts[0]), shown.get("query", texts[0])
    values = {"query": query, "documents": [text], "texts": [text], "input": text, "inputs": text}
    example = {"model": name, **{each: values[each] for each in [*fields][:count]}}
    return {"application/json": {"schema": schema, "example": example}}


def _tensors(model: Json) -> Json:
    """Return the content of an inference with tensors."""
    names = [each["name"] for each in model.get("inputs", ())]
    named = {"name": {"enum": names} if names else TEXT, "shape": _SHAPE, "datatype": TEXT, "data": {}}
    tensor = {"type": "object", "required": ["name", "shape", "datatype"], "properties": named}
    fields = {"id": TEXT, "inputs": {"type": "array", "items": tensor}, "outputs": ANY}
    schema = {"type": "object", "required": ["inputs"], "properties": {**fields, "parameters": {"type": "object"}}}
    item = model.get("item") or {}
    known = dict(zip(item.get("properties", ()), model.get("inputs", ()), strict=False))
    sample = item.get("example")
    tensors = [_tensor(known[key], value) for key, value in sample.items() if key in known] if sample else []
    return {"schema": schema, **_shown({"inputs": tensors} if all(tensors) and tensors else None)}


def _tensor(tensor: Json, value: object) -> Json:
    """Return one row of a tensor; empty if the rows are not along its first dimension."""
    array = np.array(value)
    shape = [1, *array.shape, *([1] if len(tensor["shape"]) == array.ndim + 2 else [])]
    if tensor.get("batch_dim") or len(shape) != len(tensor["shape"]) or math.prod(shape) != array.size:
        return {}
    return {"name": tensor["name"], "shape": shape, "datatype": tensor["datatype"], "data": array.ravel().tolist()}
