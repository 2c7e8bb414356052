"""/openapi.json: a valid document whose paths the host answers, with examples that its models accept."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from deploy.archives.archive import Recipe
from deploy.gateway.control import page, protocol
from deploy.models import ModelEntry
from deploy.protocol.openapi import GATEWAY, ONE_PROCESS, ROUTES, describe
from handlers.protocol.wire import APIS
from tests.deploy.hosts.serve.conftest import number_archive
from tests.hosts import is_ready, start
from tests.tiny_models import LABELS, checkpoint
from tests.waiting import until

UNKNOWN: dict[str, Any] = {}
# Paths whose examples are the model's own sample.
EXAMPLES = ("/predictions/{}", "/predictions/{}/{{version}}", "/v1/models/{}:predict", "/v2/models/{}/infer")


def test_document_without_metadata_is_valid_and_names_each_route() -> None:
    texts: dict[str, Any] = {"version": "1.0", "api": "embeddings", "inputs": [], "accepts": ["image/*"]}
    texts |= {"item": {"type": "object", "properties": {}}, "options": {"spans": {"type": "array", "default": None}}}
    found = describe({"a/b {c}": UNKNOWN, "texts": texts}, ONE_PROCESS | GATEWAY | {"repository"})
    validate(found)
    # A generator of clients needs the items of an array, and the schema of a medium.
    assert not re.search(r'"type": "array"}|"content": {[^{}]*: {}', json.dumps(found))
    paths = {path.replace("/texts", "/{model}").replace("a%2Fb%20%7Bc%7D", "{model}") for path in found["paths"]}
    rerank = {path for path, api in APIS.items() if api in ("rerank", "sparse", "pooling")}
    assert paths == {route.path for route in ROUTES} - rerank


def test_gateway_documents_each_of_its_own_routes() -> None:
    known = {route.path for route in ROUTES if route.part in (*GATEWAY, "repository", "embedder")}
    own = {each.path for each in (*protocol.routes, *page.routes) if each.method != "*"}
    named = {re.sub(r"\{(\w+):[^{}]*\}", r"{\1}", path).replace("{question}", "config") for path in own}
    internal = {path for path in named if re.match("/grpc|/inference|/page|/docs|/summary|/$", path)}
    assert {path.removesuffix("/") for path in named - internal} <= known


def built(name: str, task: str, folder: Path, weights: Path) -> Path:
    (own := folder / name).mkdir()
    (own / "model-config.yaml").write_text("handler: {}\n")
    entry = ModelEntry(name, task, "1.0", own, {"path": str(weights)})
    return Recipe(entry, engine="auto", export_path=folder / "store").build().path


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of one process with models of numbers, of a text, of two texts and of vectors."""
    folder = tmp_path_factory.mktemp("models")
    archives = [number_archive("double", "def infer(x):\n    return {'y': x * 2}\n", folder)]
    for name, task in (("vectors", "sentence_embedding"), ("spans", "question_answering"), ("ranks", "reranking")):
        labels = ("relevant",) if task == "reranking" else LABELS
        weights = checkpoint(folder / f"{name}-weights", "bert", task, labels)
        archives.append(built(name, task, folder, weights))
    host = start(*archives)
    try:
        until(lambda: is_ready(host))
        yield host.url
    finally:
        host.end()


@pytest.mark.builds
def test_one_process_answers_each_documented_path_and_the_models_own_examples(url: str) -> None:
    document = requests.get(f"{url}/openapi.json", timeout=30).json()
    validate(document)
    operations = [(path, *each) for path, methods in document["paths"].items() for each in methods.items()]
    shown = set()
    for path, method, operation in operations:
        named = {each["name"]: each["schema"]["enum"][0] for each in operation["parameters"]}
        where = url + path.format_map({"version": "", **named})
        query = {} if "{version}" in path else named
        contents = (operation.get("requestBody") or {"content": {}})["content"]
        status = requests.request(method, where, params=query, timeout=30).status_code
        assert status not in (404, 405, 500), (path, method, status)
        for media, content in contents.items():
            if "example" in content:
                schema = {**content["schema"], "components": document["components"]}
                Draft202012Validator(schema).validate(content["example"])
                example = content["example"]
                body = (
                    {"data": example.encode(), "headers": {"Content-Type": media}}
                    if isinstance(example, str)
                    else {"json": example}
                )
                answer = requests.request(method, where, params=query, timeout=30, **body)
                assert answer.status_code == 200, (path, media, example, answer.text)
                shown.add(path)
    by_model = {f"{path.format(name)}" for name in ("double", "vectors", "spans", "ranks") for path in EXAMPLES}
    assert shown >= {*by_model, "/v1/embeddings", "/embed", "/v2/embed", "/v1/rerank", "/rerank"}


@pytest.mark.builds
def test_pages_of_one_process_load_their_own_files_and_its_models(url: str) -> None:
    for path in ("/", "/docs"):
        files = re.findall(r'(?:src|href)="(/page/[^"]+)"', requests.get(url + path, timeout=30).text)
        assert len(files) == 4
        for file in files:
            answer = requests.get(url + file, timeout=30)
            assert answer.status_code == 200 and "default-src 'none'" in answer.headers["Content-Security-Policy"]
    requests.post(f"{url}/predictions/vectors", data="the ferry", timeout=30)
    until(lambda: "handler_requests_total" in summary(url, "vectors")["counters"])
    (version,) = summary(url, "vectors")["versions"]
    assert version["metadata"]["item"]["example"]["text"] and version["replicas"][0]["ready_workers"] == 1
    assert requests.get(f"{url}/page/..%2f__init__.py", timeout=30).status_code == 404


def summary(url: str, name: str) -> dict[str, Any]:
    models = requests.get(f"{url}/summary", timeout=30).json()["models"]
    found: dict[str, dict[str, Any]] = {each["name"]: each for each in models}
    return found[name]
