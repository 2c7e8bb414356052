"""An archive with int8 behind a real TorchServe: as near to fp32 as its proof says, in either mode; `auto` says why."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from deploy.archive import Recipe
from deploy.models import ROOT, model
from deploy.precision.wanted import Wanted
from deploy.server import Server
from handlers.archive_files import proofs
from tests import held_out
from tests.e2e.conftest import MOBILENET, Answer, alone, send_together, url
from torchserve_client.management import ManagementError

pytestmark = [pytest.mark.timeout(600)]

NAME = "mobilenet-int8"
# Every class is in an answer, so that any probability may be compared.
SETTINGS: dict[str, Any] = {"precision": "int8", "top_k": 1000}
CROPS = 24


@pytest.fixture(scope="module")
def with_int8(model_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """mobilenet-v2 as a folder of the model store, its int8 proven on the crops that are sent."""
    subprocess.run([ROOT / "deploy" / "extras" / "environment.sh", "int8"], cwd=ROOT, check=True, timeout=300)
    calibration, others = held_out.crops(CROPS).write(tmp_path_factory.mktemp("images"), ".jpg")
    recipe = Recipe(
        replace(model(MOBILENET), name=NAME),
        archive_format="no-archive",
        export_path=model_store,
        # What comes out of one calibration on few crops; which answers are near enough is tested elsewhere.
        wanted=Wanted("int8", calibration, others, least=0.5),
    )
    with alone(tmp_path_factory):
        folder = recipe.build().path
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def register(
    with_int8: Path, model_store: Path, server: Server, registrations: Any
) -> Iterator[Callable[..., tuple[str, Path]]]:
    """Have a copy of the archive with other settings served; gives the model's name and the copy's folder."""
    made: list[Path] = []

    def make(name: str, handler: dict[str, Any], **settings: Any) -> tuple[str, Path]:
        folder = model_store / name
        shutil.copytree(with_int8, folder)
        made.append(folder)
        config = yaml.safe_load((folder / "model-config.yaml").read_text())
        config = {**config, **settings, "handler": {**config["handler"], **handler}}
        (folder / "model-config.yaml").write_text(yaml.safe_dump(config))
        manifest = folder / "MAR-INF" / "MANIFEST.json"
        content = json.loads(manifest.read_text())
        content["model"]["modelName"] = name
        manifest.write_text(json.dumps(content))
        registrations.serve(name, name, {"batch_size": 8, "max_batch_delay_ms": 20, "workers": 1})
        return name, folder

    yield make
    for folder in made:
        try:
            server.management.unregister(folder.name)
        except ManagementError:
            pass
        shutil.rmtree(folder)


def probabilities(answers: list[Answer]) -> list[dict[str, float]]:
    """What each answer says of each class."""
    assert [answer.status for answer in answers] == [200] * len(answers)
    assert all(len(answer.body) == 1000 for answer in answers)
    return [answer.body for answer in answers]


def largest_change(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> float:
    """The most that a probability differs."""
    pairs = zip(ours, theirs, strict=True)
    return max(abs(value - others[label]) for each, others in pairs for label, value in each.items())


def test_served_int8_is_as_near_to_fp32_as_its_proof_says_in_either_mode(
    server: Server, register: Callable[..., tuple[str, Path]]
) -> None:
    bodies = held_out.crops(CROPS).held_out
    exact, folder = register("mobilenet-fp32", {**SETTINGS, "precision": "fp32"})
    expected = probabilities(send_together(server, exact, bodies))
    proof = proofs(folder)["int8"]
    assert proof.largest_change is not None
    classic, _ = register("mobilenet-int8-classic", {**SETTINGS, "scheduling": {"mode": "classic"}})
    adaptive, _ = register(
        "mobilenet-int8-adaptive",
        {**SETTINGS, "scheduling": {"mode": "adaptive", "max_latency_ms": 60_000}},
        continuousBatching=True,
        minWorkers=1,
        maxWorkers=1,
    )
    for name in (classic, adaptive):
        found = probabilities(send_together(server, name, bodies))
        # The answers are those of the proof's own crops, but for who else is in their micro-batch.
        change = largest_change(expected, found)
        assert change == pytest.approx(proof.largest_change, abs=0.01)
        # It is int8, and not what fp32 would be beside itself.
        assert change > 0.01
        same = [
            max(ours, key=ours.__getitem__) == max(each, key=each.__getitem__)
            for ours, each in zip(expected, found, strict=True)
        ]
        assert sum(same) / len(same) == pytest.approx(proof.agreement, abs=0.05)


def test_precision_auto_says_in_the_log_what_it_took_and_why(
    server: Server, register: Callable[..., tuple[str, Path]]
) -> None:
    log = server.logs / "model_log.log"
    before = len(log.read_text(encoding="utf-8"))
    name, _ = register("mobilenet-auto", {**SETTINGS, "precision": "auto"})
    probabilities(send_together(server, name, held_out.crops(CROPS).held_out[:2]))
    lines = re.findall(
        r"Runs (int8|bf16|fp32).*: ms an item alone and among \d+.*", log.read_text(encoding="utf-8")[before:]
    )
    assert len(lines) == 1


def test_served_int8_tells_its_precision_and_its_proof(
    server: Server, register: Callable[..., tuple[str, Path]]
) -> None:
    name, folder = register("mobilenet-told", SETTINGS)
    said = requests.get(url(server, name), headers={"X-Model-Metadata": "1"}, timeout=60).json()
    assert said["precision"] == "int8"
    assert said["proofs"]["int8"] == proofs(folder)["int8"].to_json()
