"""The OpenAPI document is one, and says of each model what its handler says."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped] # comes with kubernetes-validate
import pytest

from deploy.gateway import openapi
from deploy.gateway.state import Fleet, Model, Version
from tests.deploy.gateway.envoy.stand_ins import METADATA

TOP_K = {"type": "integer", "minimum": 1, "default": 5, "description": "the most labels of its answer."}
FILES = ["application/x-npy", "application/x-npz", "application/json"]
RAGGED = [
    {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
    {"name": "words", "datatype": "BYTES", "shape": [-1, 2]},
    {"name": "sizes", "datatype": "UINT8", "shape": [2, -1], "batch_dim": 1},
]
SAID: dict[str, dict[str, Any] | None] = {
    "image": METADATA,
    "question": {"task": "question_answering", "accepts": ["text/plain", FILES[2]], "options": {"top_k": TOP_K}},
    "mnist": {"inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 28, 28]}]},
    "ragged": {"inputs": RAGGED, "outputs": [{"name": "vectors", "datatype": "BF16", "shape": [-1, -1, 2]}]},
    # A handler that is not of this project, and one that has said nothing yet.
    "foreign": {"task": "", "accepts": [], "inputs": [], "outputs": []},
    "räv {x}/y": None,
}
TENSORS = {**METADATA, "task": "tensors", "accepts": FILES}
MODELS = {
    name: Model(name, {each: Version(each, {}, said and {**TENSORS, **said}) for each in ("1.0", "2.0")})
    for name, said in SAID.items()
}
DOCUMENT: dict[str, Any] = json.loads(json.dumps(openapi.document(Fleet(models=MODELS)), allow_nan=False))


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(child)


@pytest.mark.parametrize("document", [DOCUMENT, openapi.document(Fleet())], ids=["models", "none"])
def test_document_holds_what_openapi_asks_of_one(document: dict[str, Any]) -> None:
    """The rules of OpenAPI 3.1.0 that a document can break; no validator is among the dependencies."""
    operations = [(path, operation) for path, item in document["paths"].items() for operation in item.values()]
    for path, operation in operations:
        named = [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"]
        assert sorted(named) == sorted(re.findall(r"\{(\w+)\}", path)), path
        assert all(re.fullmatch(r"[1-5]\d\d", status) for status in operation["responses"])
    assert len({operation["operationId"] for _, operation in operations}) == len(operations)
    for reference in (part["$ref"] for part in walk(document) if "$ref" in part):
        found: Any = document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
        assert found
    # Health is answered without a key.
    assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    assert document["paths"]["/v2/health/ready"]["get"]["security"] == []


def content(name: str) -> Any:
    return DOCUMENT["paths"][f"/predictions/{name}"]["post"]["requestBody"]["content"]


IMAGE = [[[0.5] * 28] * 28]


def test_schema_of_tensors_takes_what_the_model_takes() -> None:
    def is_valid(name: str, value: Any) -> bool:
        schema = {**content(name)["application/json"]["schema"], "components": DOCUMENT["components"]}
        return bool(jsonschema.Draft202012Validator(schema).is_valid(value))

    tensor = {"name": "image", "shape": [0], "datatype": "FP32", "data": []}
    for good in ({"instances": [IMAGE, {"image": IMAGE}]}, {"inputs": {"image": [IMAGE]}}, {"inputs": [tensor]}):
        assert is_valid("mnist", good)
    for bad in ({"instances": [IMAGE] * 17}, {"image": IMAGE[0]}, {"picture": IMAGE}):
        assert not is_valid("mnist", bad)
    for sizes, expected in (([0, 255], True), ([0, 256], False), ([1, 2, 3], False)):
        assert is_valid("ragged", {"sizes": sizes}) is expected
    # Three forms of a row that is short enough to read.
    assert content("ragged").keys() == {*FILES}
    examples = content("ragged")["application/json"]["examples"].values()
    assert [is_valid("ragged", example["value"]) for example in examples] == [True] * 3
