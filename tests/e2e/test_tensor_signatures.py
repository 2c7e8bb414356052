"""Generated models of any signature on a real TorchServe, from archives as a user builds them, all side by side."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings

from deploy.archive import Recipe
from deploy.models import Model as Entry
from deploy.server import Server
from tests.e2e.conftest import Registrations, url
from tests.handlers.serving import Answer
from tests.handlers.tasks.test_tensors_signatures import check, forms
from tests.handlers.tensor_models.generated import Model, models

COUNT = 20
# What a form is sent as; `curl --data-binary` would name none of the files' types, whose first bytes tell.
TYPES = {
    "json": "application/json",
    "binary": "application/octet-stream",
    "npz": "application/x-npz",
    "columns": "application/json",
    "instances": "application/json",
}


def drawn(count: int) -> list[Model]:
    """The same models each time, each the last of a few: the first examples are the simplest."""
    found: list[Model] = []

    @seed(17)
    @settings(
        max_examples=3 * count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(model=models())
    def draw(model: Model) -> None:
        if model not in found:
            found.append(model)

    draw()
    return found[-count:]


def built(name: str, model: Model, folder: Path, store: Path) -> None:
    """An archive of infer.py and its model-config.yaml."""
    own = folder / name
    own.mkdir()
    (own / "infer.py").write_text(f"import numpy as np\n\n{model.source}", encoding="utf-8")
    (own / "model-config.yaml").write_text(yaml.safe_dump({"handler": model.settings}, sort_keys=False))
    Recipe(Entry(name, "tensors", "1", own, {"path": "infer.py"}), export_path=store).build()


@pytest.fixture(scope="module")
def built_models(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    """In the session's store, as `signature-0` and so on."""
    folder = tmp_path_factory.mktemp("signatures")
    all_models = drawn(COUNT)
    # One after the other: a build imports infer.py, under that name.
    for index, each in enumerate(all_models):
        built(f"signature-{index}", each, folder, model_store)
    return all_models


def asked(session: requests.Session, url: str, form: str, body: Any, headers: Any) -> Answer:
    response = session.post(url, body["body"], headers={**headers, "Content-Type": TYPES[form]}, timeout=60)
    kind = response.headers["content-type"]
    answer = json.loads(response.content) if kind.startswith("application/json") else response.content
    lower = {name.lower(): value for name, value in response.headers.items()}
    length = lower.get("inference-header-content-length")
    own = {"content-type": kind} | ({"Inference-Header-Content-Length": length} if length else {})
    return Answer(response.status_code, answer, own)


def test_generated_models_answer_as_their_functions_do_side_by_side(
    server: Server, registrations: Registrations, built_models: list[Model]
) -> None:
    def ask(index: int) -> None:
        model, name = built_models[index], f"signature-{index}"
        server.register(name, f"{name}.mar", batch_size=4, max_batch_delay_ms=5, workers=1)
        given = [model.arrays(request) for request in range(len(model.requests))]
        wanted = [model.wanted(arrays) for arrays in given]
        with requests.Session() as session:
            for form in forms(model, given[0]):
                sent = [forms(model, arrays)[form] for arrays in given]
                check(model, [asked(session, url(server, name), form, *each) for each in sent], form, wanted)
        server.management.unregister(name)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(COUNT)))
