"""The OpenAPI 3.1 document of what is served: a path for each model, and the protocol's own routes. Pure.

Fleet -> models with their metadata -> /predictions/M: what it accepts, its options, its answer
      -> every model                -> /v2: health, metadata, inference
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from deploy.gateway import openapi_tensors
from deploy.gateway.openapi_schemas import JSON, Schema, list_of, object_of, ref
from deploy.gateway.state import Fleet, Model

TEXT: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "number"}
PLACE: Schema = {"type": "integer", "minimum": 0}


LABELS = list_of(object_of({"label": {"type": "string"}, "score": NUMBER}))
SPAN = object_of({"answer": {"type": "string"}, "score": NUMBER, "start": PLACE, "end": PLACE})
ENTITY = object_of({"score": NUMBER, "word": {"type": "string"}, "start": PLACE, "end": PLACE})
# Task -> the answer of one item; docs/requests.md has them in words. Others may be any JSON.
ANSWERS: Mapping[str, Schema] = {
    "image_classification": {
        "type": "object",
        "additionalProperties": NUMBER,
        "description": "Label -> probability, likeliest first.",
    },
    "language_id": LABELS,
    "text_classification": LABELS,
    "token_classification": list_of(ENTITY),
    "question_answering": {"anyOf": [SPAN, list_of(SPAN)]},
    "sentence_embedding": list_of(NUMBER),
    "tokenization": object_of(
        {"input_ids": list_of({"type": "integer"}), "attention_mask": list_of({"type": "integer"})}
    ),
    # The last two where the language was identified.
    "translation": {
        "type": "object",
        "properties": {
            "translation_text": {"type": "string"},
            "src_lang": {"type": "string"},
            "src_lang_score": NUMBER,
        },
        "required": ["translation_text"],
    },
}
# Task -> the fields of one item in JSON, beside its options; others take {"text": ...}.
FIELDS: Mapping[str, Mapping[str, Schema]] = {
    "image_classification": {"b64": {"type": "string", "contentEncoding": "base64"}},
    "question_answering": {"question": TEXT, "context": TEXT},
}
# JSON Schema's types, of which an option's is one; others ("any") are left out.
TYPES = frozenset({"integer", "number", "string", "boolean", "array", "object"})

# Words of JSON Schema that metadata uses as they are.
WORDS = ("enum", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")

# Status -> what it means; docs/requests.md has the types of each.
ERRORS: Mapping[str, str] = {
    "400": "The request is not what the model takes: its shape, its options, its text.",
    "401": "A key is needed: Authorization: Bearer KEY.",
    "404": "There is no such model or version.",
    "406": "The model's answer has no such form as Accept asks for.",
    "408": "The request did not come in time.",
    "413": "The body, an item or the whole work is too large; the message names the limit.",
    "415": "This is no image that can be read, or a compressed body.",
    "422": "The image is broken, or base64 that is none.",
    "429": "The client's rate or the model's queue is exceeded; Retry-After says when to come again.",
    "500": "The model failed on this item.",
    "503": "No worker is up, or the queue is full.",
    "504": "The answer took too long.",
    "507": "The model ran out of memory on this item.",
}

NO_KEY: list[Any] = []


def document(fleet: Fleet, title: str = "Models behind this gateway", version: str = "1") -> dict[str, Any]:
    """Write the document.

    Args:
        fleet: what is served.
        title, version: of the document's head.

    Returns:
        OpenAPI 3.1, as JSON has it; the same for the same fleet.
    """
    paths: dict[str, Any] = {}
    for name in sorted(fleet.models):
        paths.update(_model_paths(fleet.models[name]))
    paths.update(_protocol_paths(fleet))
    paths["/summary"] = {
        "get": {
            "operationId": "summary",
            "tags": ["gateway"],
            "summary": "Models, their state, and five minutes of their traffic.",
            "parameters": [
                {
                    "name": "since",
                    "in": "query",
                    "schema": NUMBER,
                    "description": "Leave out points up to this time_s.",
                }
            ],
            "responses": {"200": _answer({"type": "object"}), **_errors("400", "401", "429")},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": version,
            "description": "What is served now; models come and go. Errors are `{code, type, message}`.",
        },
        "servers": [{"url": "/"}],
        # Where the gateway has no keys, none is needed.
        "security": [{"key": []}, {}],
        "tags": [
            {"name": "predictions", "description": "One path for each model."},
            {"name": "v2", "description": "Open Inference Protocol, as KServe's and Triton's clients speak it."},
            {"name": "gateway", "description": "The gateway itself."},
        ],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(),
            "responses": {f"Error{status}": _error(status, text) for status, text in ERRORS.items()},
        },
    }


def _model_paths(model: Model) -> dict[str, Any]:
    """Write /predictions/M and /predictions/M/V; the default version speaks for the others."""
    versions = sorted(model.versions)
    chosen = model.default if model.default in model.versions else (versions[-1] if versions else None)
    metadata = (model.versions[chosen].metadata if chosen is not None else None) or {}
    path = f"/predictions/{quote(model.name, safe='')}"
    operation = _predict(model, metadata)
    version = {
        "name": "version",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "enum": versions} if versions else {"type": "string"},
    }
    return {
        path: {"post": {**operation, "operationId": f"predict {model.name}"}},
        f"{path}/{{version}}": {
            "post": {**operation, "operationId": f"predict version of {model.name}", "parameters": [version]}
        },
    }


def _predict(model: Model, metadata: Mapping[str, Any]) -> dict[str, Any]:
    task = str(metadata.get("task", ""))
    rows = metadata.get("max_instances")
    if task == openapi_tensors.TASK:
        content, answers = openapi_tensors.bodies(metadata), openapi_tensors.answers(metadata)
    else:
        answer = ANSWERS.get(task, {})
        content = _content(task, metadata, rows)
        predictions = object_of({"predictions": list_of({"anyOf": [answer, ref("ItemError")]})})
        answers = {JSON: {"schema": {"anyOf": [answer, predictions]}}}
    return {
        "tags": ["predictions"],
        "summary": f"{model.name}: {task.replace('_', ' ') or 'a model'}",
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": {
                "description": "The answer.",
                "headers": {
                    "Server-Timing": {
                        "description": "Milliseconds of each part of the way, and the size of the micro-batch.",
                        "schema": {"type": "string"},
                    }
                },
                "content": answers,
            },
            **_errors(*ERRORS),
        },
    }


def _content(task: str, metadata: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """Describe the bodies that a model takes: what it accepts as it is, and JSON."""
    if not metadata.get("accepts"):
        # A handler that is not of this project, or one that has not told yet.
        return {"*/*": {"schema": {}}}
    options = {name: _option(option) for name, option in sorted(metadata.get("options", {}).items())}
    fields = dict(FIELDS.get(task, {"text": TEXT}))
    item = {**object_of(fields), "properties": {**fields, **options}, "additionalProperties": False}
    one: Schema = item if task in FIELDS else {"anyOf": [TEXT, item]}
    instances: Schema = {**list_of(one), "minItems": 1}
    if isinstance(rows, int):
        instances["maxItems"] = rows
    # Options beside the list hold for all of its items; a question's own fields may stand there too.
    shared = {**options, **(fields if task == "question_answering" else {})}
    many = {**object_of({"instances": instances}), "properties": {"instances": instances, **shared}}
    content: dict[str, Any] = {
        str(kind): {"schema": TEXT if str(kind).startswith("text/") else {}}
        for kind in metadata["accepts"]
        if str(kind) != JSON
    }
    return {**content, JSON: {"schema": {"anyOf": [item, many, ref("InferRequest")]}}}


def _option(option: Mapping[str, Any]) -> Schema:
    """Describe an option as JSON Schema; an unknown type is any value."""
    schema: Schema = {}
    if option.get("type") in TYPES:
        schema["type"] = option["type"]
    schema |= {word: option[word] for word in WORDS if word in option}
    if option.get("default") is not None:
        schema["default"] = option["default"]
    if description := option.get("description"):
        schema["description"] = str(description)
    return schema


def _protocol_paths(fleet: Fleet) -> dict[str, Any]:
    names = sorted(fleet.models)
    model = {
        "name": "model",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "enum": names} if names else {"type": "string"},
    }
    version = {"name": "version", "in": "path", "required": True, "schema": {"type": "string"}}
    paths: dict[str, Any] = {
        "/v2": {"get": _ask("serverMetadata", "Name, version and extensions of the server.")},
        "/v2/health/live": {"get": {**_ask("serverLive", "Whether the gateway runs."), "security": NO_KEY}},
        "/v2/health/ready": {
            "get": {**_ask("serverReady", "Whether every model has all its workers."), "security": NO_KEY}
        },
    }
    for path, parameters, suffix in (
        ("/v2/models/{model}", [model], ""),
        ("/v2/models/{model}/versions/{version}", [model, version], "Version"),
    ):
        for part, what in (
            ("", "Names, datatypes and shapes of inputs and outputs."),
            ("/ready", "Whether its workers are ready."),
            ("/config", "Its configuration in Triton's form."),
            ("/stats", "Counts and times in Triton's form."),
        ):
            operation = _ask(f"model{part[1:].capitalize() or 'Metadata'}{suffix}", what)
            paths[path + part] = {"get": {**operation, "parameters": parameters}}
        paths[f"{path}/infer"] = {
            "post": {
                "operationId": f"infer{suffix}",
                "tags": ["v2"],
                "summary": "Inference with tensors, binary or JSON.",
                "parameters": parameters,
                "requestBody": {
                    "required": True,
                    "content": {JSON: {"schema": ref("InferRequest")}, "application/octet-stream": {"schema": {}}},
                },
                "responses": {"200": _answer(ref("InferResponse")), **_errors(*ERRORS)},
            }
        }
    return paths


def _ask(operation: str, what: str) -> dict[str, Any]:
    return {
        "operationId": operation,
        "tags": ["v2"],
        "summary": what,
        "responses": {
            "200": {"description": "The answer.", "content": {JSON: {"schema": {}}}},
            **_errors("400", "401", "404", "429", "503"),
        },
    }


def _schemas() -> dict[str, Schema]:
    error = object_of({"code": {"type": "integer"}, "type": {"type": "string"}, "message": {"type": "string"}})
    parameters: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
    tensor = object_of(
        {
            "name": {"type": "string"},
            "shape": list_of({"type": "integer", "minimum": 0}),
            "datatype": {"type": "string", "examples": ["BYTES", "FP32", "INT64"]},
        }
    )
    tensor["properties"].update({"data": {"type": "array"}, "parameters": parameters})
    named = object_of({"name": {"type": "string"}})
    named["properties"]["parameters"] = parameters
    request = object_of({"inputs": {**list_of(ref("Tensor")), "minItems": 1}})
    request["properties"].update({"id": {"type": "string"}, "parameters": parameters, "outputs": list_of(named)})
    answer = object_of({"model_name": {"type": "string"}, "outputs": list_of(ref("Tensor"))})
    answer["properties"].update({"model_version": {"type": "string"}, "id": {"type": "string"}})
    return {
        # The protocol's own routes answer {"error": message}.
        "Error": {"anyOf": [error, object_of({"error": {"type": "string"}})]},
        "ItemError": object_of({"error": error}),
        "Tensor": tensor,
        "InferRequest": request,
        "InferResponse": answer,
    }


def _answer(schema: Schema) -> dict[str, Any]:
    return {"description": "The answer.", "content": {JSON: {"schema": schema}}}


def _errors(*statuses: str) -> dict[str, Any]:
    return {status: {"$ref": f"#/components/responses/Error{status}"} for status in statuses}


def _error(status: str, text: str) -> dict[str, Any]:
    response: dict[str, Any] = {"description": text, "content": {JSON: {"schema": ref("Error")}}}
    if status == "429":
        response["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return response
