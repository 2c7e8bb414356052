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
    {"name": "is_long", "datatype": "BOOL", "shape": [-1]},
    {"name": "words", "datatype": "BYTES", "shape": [-1, 2]},
    {"name": "sizes", "datatype": "UINT8", "shape": [2, -1], "batch_dim": 1},
]
SAID: dict[str, dict[str, Any] | None] = {
    "image": METADATA,
    "question": {"task": "question_answering", "accepts": ["text/plain", FILES[2]], "options": {"top_k": TOP_K}},
    "mnist": {"inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 28, 28]}]},
    "ragged": {"inputs": RAGGED, "outputs": [{"name": "vectors", "datatype": "BF16", "shape": [-1, -1, 2]}]},
    # A function that declares nothing, whose input has the name of a form of requests.
    "anything": {"inputs": [{"name": "inputs", "datatype": "ANY", "shape": [-1]}], "outputs": []},
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
    assert document["openapi"] == "3.1.0"
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
    assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    # Health is answered without a key.
    assert document["paths"]["/v2/health/ready"]["get"]["security"] == []


def body(name: str, of: str = "requestBody") -> Any:
    operation = DOCUMENT["paths"][f"/predictions/{name}"]["post"]
    return operation["requestBody"]["content"] if of == "requestBody" else operation["responses"]["200"]["content"]


def validator(content: Any) -> Any:
    """Read values by the schema of a JSON body."""
    schema = content["application/json"]["schema"]
    return jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def test_model_has_its_media_types_options_and_versions() -> None:
    assert body("image").keys() == {"image/*", "application/json"}
    assert body("question").keys() == {"text/plain", "application/json"}
    item, many, _ = body("question")["application/json"]["schema"]["anyOf"]
    assert (item["required"], item["properties"]["top_k"]) == (["question", "context"], TOP_K)
    assert many["properties"]["instances"]["maxItems"] == 16
    (version,) = DOCUMENT["paths"]["/predictions/image/{version}"]["post"]["parameters"]
    assert version["schema"]["enum"] == ["1.0", "2.0"]
    for name in ("foreign", "r%C3%A4v%20%7Bx%7D%2Fy"):
        assert body(name) == {"*/*": {"schema": {}}}


def test_examples_of_tensors_are_what_the_schema_says() -> None:
    # An image of a thousand numbers is no example to read; `inputs` alone would be taken for columns.
    forms = {"mnist": set(), "ragged": {"columns", "instances", "one row"}, "anything": {"columns", "instances"}}
    for name, expected in forms.items():
        assert body(name).keys() == {*FILES}
        examples = body(name)["application/json"].get("examples", {})
        assert examples.keys() == expected
        for example in examples.values():
            validator(body(name)).validate(example["value"])
    row = {"ids": [0, 1, 0, 1], "is_long": True, "words": ["text 0", "text 1"], "sizes": [0, 1]}
    assert body("ragged")["application/json"]["examples"]["one row"]["value"] == row


IMAGE = [[[0.5] * 28] * 28]


@pytest.mark.parametrize(
    ("name", "value", "is_valid"),
    [
        ("mnist", {"image": IMAGE}, True),
        ("mnist", {"instances": [IMAGE, {"image": IMAGE}]}, True),
        ("mnist", {"inputs": {"image": [IMAGE, IMAGE]}}, True),
        ("mnist", {"inputs": [{"name": "image", "shape": [0], "datatype": "FP32", "data": []}]}, True),
        ("mnist", {"instances": [IMAGE] * 17}, False),
        ("mnist", {"image": IMAGE[0]}, False),
        ("mnist", {"picture": IMAGE}, False),
        ("ragged", {"ids": [], "sizes": [0, 255]}, True),
        ("ragged", {"sizes": [0, 256]}, False),
        ("ragged", {"sizes": [1, 2, 3]}, False),
        ("anything", {"instances": ["a", {"inputs": True}, [[1]]]}, True),
    ],
)
def test_schema_of_tensors_takes_what_the_model_takes(name: str, value: Any, is_valid: bool) -> None:
    assert validator(body(name)).is_valid(value) is is_valid


def test_answers_of_tensors_have_a_schema_for_each_form() -> None:
    answer, vectors = body("ragged", "answer"), [[0.5, None], [1.0, -1.0]]
    error = {"code": 400, "type": "TensorMismatch", "message": "No."}
    assert answer.keys() == {*FILES}
    for document in (
        {"vectors": vectors},
        {"predictions": [vectors, {"error": error}]},
        {"outputs": {"vectors": [vectors, None]}, "errors": [None, error]},
    ):
        validator(answer).validate(document)
    assert not validator(answer).is_valid({"predictions": ["?"]})
