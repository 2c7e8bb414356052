"""The OpenAPI document is one, and says of each model what its handler says."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped] # comes with kubernetes-validate
import pytest

from deploy.gateway import openapi
from deploy.gateway.state import Fleet, Model, Version
from tests.deploy.gateway.canned import MODELS, TENSOR_MODELS, fleet, tensor_fleet

METHODS = {"get", "post", "put", "delete"}
ODD = "räv {x}/y"
FLEETS = {
    "none": Fleet(),
    "seven tasks": fleet(),
    "models of tensors": tensor_fleet(),
    "without metadata": Fleet(models={"m": Model("m", {"1.0": Version("1.0", {})})}),
    "an odd name": Fleet(models={ODD: Model(ODD, {})}),
}


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(child)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        assert item.keys() <= METHODS
        yield from ((path, operation) for operation in item.values())


@pytest.mark.parametrize("served", FLEETS.values(), ids=list(FLEETS))
def test_document_holds_what_openapi_asks_of_one(served: Fleet) -> None:
    """The rules of OpenAPI 3.1.0 that a document can break; no validator is among the dependencies."""
    document = json.loads(json.dumps(openapi.document(served), allow_nan=False))
    assert document["openapi"] == "3.1.0"
    assert document["info"].keys() >= {"title", "version"}
    ids = []
    for path, operation in operations(document):
        assert path.startswith("/")
        ids.append(operation["operationId"])
        named = [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"]
        assert sorted(named) == sorted(re.findall(r"\{(\w+)\}", path)), path
        assert all(parameter["required"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path")
        assert operation["responses"] and all(re.fullmatch(r"[1-5]\d\d", status) for status in operation["responses"])
        assert all("description" in each or "$ref" in each for each in operation["responses"].values())
    assert len(set(ids)) == len(ids)
    for reference in (part["$ref"] for part in walk(document) if "$ref" in part):
        found: Any = document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
        assert found


@pytest.mark.parametrize("served", FLEETS.values(), ids=list(FLEETS))
def test_schemes_that_are_used_are_declared(served: Fleet) -> None:
    document = openapi.document(served)
    declared = document["components"]["securitySchemes"]
    assert declared["key"] == {"type": "http", "scheme": "bearer"}
    used = [document["security"], *(each["security"] for _, each in operations(document) if "security" in each)]
    assert {name for alternatives in used for each in alternatives for name in each} <= declared.keys()
    # Health is told without a key.
    assert document["paths"]["/v2/health/ready"]["get"]["security"] == []


@pytest.mark.parametrize("name", list(MODELS))
def test_model_has_its_media_types_and_options(name: str) -> None:
    document = openapi.document(fleet())
    operation = document["paths"][f"/predictions/{name}"]["post"]
    content = operation["requestBody"]["content"]
    kind = "image/*" if MODELS[name].inputs == ("image",) else "text/plain"
    assert content.keys() == {kind, "application/json"}
    item, many, _ = content["application/json"]["schema"]["anyOf"]
    assert item["properties"].keys() >= MODELS[name].options.keys()
    assert many["properties"]["instances"]["maxItems"] == 64
    assert f"/predictions/{name}/{{version}}" in document["paths"]


def test_options_carry_what_metadata_says_of_them() -> None:
    content = openapi.document(fleet())["paths"]["/predictions/resnet-152"]["post"]["requestBody"]["content"]
    item = content["application/json"]["schema"]["anyOf"][0]
    assert item["required"] == ["b64"]
    assert item["properties"]["top_k"] == {
        "type": "integer",
        "minimum": 1,
        "default": 5,
        "description": "the most labels of its answer.",
    }


def test_model_that_says_nothing_of_itself_takes_anything() -> None:
    foreign = Version("1.0", {}, {"name": "m", "platform": "torchserve", "inputs": [], "outputs": []})
    for version in (foreign, Version("1.0", {})):
        served = Fleet(models={"m": Model("m", {"1.0": version}, "1.0")})
        body = openapi.document(served)["paths"]["/predictions/m"]["post"]["requestBody"]
        assert body["content"] == {"*/*": {"schema": {}}}


def test_versions_of_a_model_are_listed() -> None:
    (version,) = openapi.document(fleet())["paths"]["/predictions/resnet-152/{version}"]["post"]["parameters"]
    assert version["schema"]["enum"] == ["1.0", "2.0"]


def test_name_is_written_as_a_path_has_it() -> None:
    assert "/predictions/r%C3%A4v%20%7Bx%7D%2Fy" in openapi.document(FLEETS["an odd name"])["paths"]


def test_document_of_the_same_fleet_is_the_same() -> None:
    assert json.dumps(openapi.document(fleet())) == json.dumps(openapi.document(fleet()))


# -- models of tensors --------------------------------------------------------------------------------------------


def validator(schema: dict[str, Any]) -> Any:
    """Reads values by a schema of the document."""
    return jsonschema.Draft202012Validator({**schema, "components": openapi.document(tensor_fleet())["components"]})


def tensors_operation(name: str) -> Any:
    return openapi.document(tensor_fleet())["paths"][f"/predictions/{name}"]["post"]


@pytest.mark.parametrize("name", list(TENSOR_MODELS))
def test_examples_of_tensors_are_what_the_schema_says(name: str) -> None:
    content = tensors_operation(name)["requestBody"]["content"]
    assert content.keys() == {"application/x-npy", "application/x-npz", "application/json"}
    examples = content["application/json"].get("examples", {})
    # An image of a thousand numbers is no example to read; `inputs` alone would be taken for columns.
    expected = {"ragged": {"columns", "instances", "one row"}, "anything": {"columns", "instances"}}
    assert examples.keys() == expected.get(name, set())
    for example in examples.values():
        validator(content["application/json"]["schema"]).validate(example["value"])


def test_example_of_tensors_has_their_datatypes_and_batch_dimensions() -> None:
    examples = tensors_operation("ragged")["requestBody"]["content"]["application/json"]["examples"]
    row = {"ids": [0, 1, 0, 1], "is_long": True, "words": ["text 0", "text 1"], "sizes": [0, 1]}
    assert examples["one row"]["value"] == row
    assert examples["instances"]["value"] == {"instances": [row]}
    columns = {"ids": [[0, 1, 0, 1]], "is_long": [True], "words": [["text 0", "text 1"]], "sizes": [[0], [1]]}
    assert examples["columns"]["value"] == {"inputs": columns}


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
        ("mnist", {"image": [[["a"] * 28] * 28]}, False),
        ("mnist", {"picture": IMAGE}, False),
        ("ragged", {"ids": [], "sizes": [0, 255]}, True),
        ("ragged", {"sizes": [0, 256]}, False),
        ("ragged", {"sizes": [1, 2, 3]}, False),
        ("ragged", {"instances": [[1, 2]]}, False),
        ("anything", {"instances": ["a", {"inputs": True}, [[1]]]}, True),
    ],
)
def test_schema_of_tensors_takes_what_the_model_takes(name: str, value: Any, is_valid: bool) -> None:
    schema = tensors_operation(name)["requestBody"]["content"]["application/json"]["schema"]
    assert validator(schema).is_valid(value) is is_valid


@pytest.mark.parametrize("name", list(TENSOR_MODELS))
def test_answers_of_tensors_have_a_schema_for_each_form(name: str) -> None:
    content = tensors_operation(name)["responses"]["200"]["content"]
    assert content.keys() == {"application/x-npy", "application/x-npz", "application/json"}
    schema = validator(content["application/json"]["schema"])
    _, outputs, answer = TENSOR_MODELS[name]
    error = {"code": 400, "type": "TensorMismatch", "message": "No."}
    schema.validate(answer)
    if name == "ragged":
        schema.validate({"predictions": [answer["vectors"], {"error": error}]})
        schema.validate({"outputs": {"vectors": [answer["vectors"], None]}, "errors": [None, error]})
    if outputs:
        assert not schema.is_valid({"predictions": ["?"]})
