"""Ray and a TorchServe with the same archive answer the same: photographs and texts, good and bad."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.models import ROOT
from deploy.nodes.run.server import Server
from load.bench.peer_process import build_environment
from tests.e2e.conftest import MOBILENET, Make, Registrations, printed
from tests.photographs import crops, photograph
from torchserve_client import Client, ClientError

EMBEDDING = "sentence-embedding"
PYTHON = ROOT / ".extras" / "ray" / "bin" / "python"


def scored(folder: Path, *orders: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The rows of each order, scored by program.py in .extras/ray."""
    build_environment("ray")
    (folder / "orders.json").write_text(json.dumps(orders))
    # Ray keeps a token in the home folder, and its workers find the project here.
    own = {"HOME": str(folder), "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    words = (PYTHON, "-W", "ignore", "-m", "tests.nightly.scoring.program", folder / "orders.json")
    lines = printed(*words, cwd=ROOT, env={**os.environ, **own}).splitlines()
    answers = json.loads(next(line for line in lines if line.startswith("[[{")))
    assert all((row["answer"] is None) != (row["error"] is None) for rows in answers for row in rows)
    return list(answers)


@pytest.fixture(scope="module")
def store(archive: Make, model_store: Path, registrations: Registrations) -> Path:
    """Archives, two of which the server serves."""
    for name in (MOBILENET, EMBEDDING):
        registrations.serve(name, archive(name), {"batch_size": 8, "max_batch_delay_ms": 20, "workers": 1})
    archive("language-id")
    return model_store


def served(server: Server, name: str, payloads: list[Any], **options: Any) -> list[Any]:
    """The server's answer to each; of an error {"code", "type", "message"}."""
    answers = []
    with Client(server.settings.inference_url) as client:
        for payload in payloads:
            try:
                answers.append(client.predict(name, payload, **options))
            except ClientError as error:
                answers.append(error.to_json())
    return answers


def assert_same(row: dict[str, Any], other: Any) -> None:
    """Check that a row has another answer, but for what another precision or micro-batch changes of a number."""
    found = row["error"] if row["error"] is not None else json.loads(row["answer"])
    if isinstance(other, list):
        assert np.dot(found, other) / np.linalg.norm(found) / np.linalg.norm(other) > 0.999, row
    else:
        assert found == (other if "code" in other else pytest.approx(other, abs=0.02)), row


def test_photographs_get_the_answers_of_the_server_and_bad_ones_its_errors(
    server: Server, store: Path, tmp_path: Path
) -> None:
    good = [photograph("chelsea"), photograph("coffee"), photograph("china"), *crops(6, sides=(300, 400))]
    bodies = [*good, good[0][:1000], b"no photograph", b"", *good]
    paths = [str(tmp_path / f"{number:03}") for number in range(len(bodies))]
    for path, body in zip(paths, bodies, strict=True):
        Path(path).write_bytes(body)
    expected = dict(zip(paths, served(server, MOBILENET, bodies, top_k=1), strict=True))
    assert [each.get("code") for each in expected.values()].count(None) == 2 * len(good)
    order = {"archive": str(store / f"{MOBILENET}.mar"), "batch_size": 8, "options": {"top_k": 1}, "threads": 1}
    order |= {"rows": [{"path": path} for path in paths], "read": "path", "column": "bytes"}
    (rows,) = scored(tmp_path, order)
    assert [set(row) for row in rows] == [{"path", "answer", "error"}] * len(paths)
    assert sorted(row["path"] for row in rows) == paths
    for row in rows:
        assert_same(row, expected[row["path"]])


def test_texts_and_objects_get_the_answers_of_the_server_and_rows_that_hold_none_an_error(
    server: Server, store: Path, tmp_path: Path
) -> None:
    texts = [f"Snow fell on the mountains, {'and on the hills, ' * number}." for number in range(12)]
    texts += ["", "{not json"]
    message = "an input is bytes, a text or an object, not NoneType"
    expected = [*served(server, EMBEDDING, texts), {"code": 0, "type": "InvalidPayload", "message": message}]
    objects: list[dict[str, Any]] = [{"text": texts[0]}, {"text": texts[1], "nonsense": 1}, {"other": "x"}]
    expected += served(server, EMBEDDING, objects)
    assert [each["code"] for each in expected[-2:]] == [400, 400]
    sent = [{"id": number, "t": text} for number, text in enumerate([*texts, None])]
    same = {"archive": str(store / f"{EMBEDDING}.mar"), "blocks": 1}
    orders = {"rows": sent, "column": "t", **same}, {"rows": [{"o": each} for each in objects], "column": "o", **same}
    of_texts, of_objects = scored(tmp_path, *orders)
    of_texts.sort(key=lambda row: int(row["id"]))
    assert [row["t"] for row in of_texts] == [*texts, None]
    assert [set(row) for row in of_objects] == [{"o", "answer", "error"}] * 3
    for row, each in zip([*of_texts, *of_objects], expected, strict=True):
        assert_same(row, each)


OWN_HANDLERS = """
import json, sys
from pathlib import Path
from deploy.hosts.scoring.dataset import Model
assert not [name for name in sys.modules if name.partition(".")[0] in ("handlers", "load")]
model = Model(Path(sys.argv[1]), batch_size=4, threads=1)
answers = model.answers(["Guten Morgen, wie geht es dir?", {"text": "Bonjour"}, b""], {"top_k": 1})
import handlers
assert Path(handlers.__file__).is_relative_to(model.folder)
print(json.dumps([[each.status, each.body.decode()] for each in answers]))
"""


def test_archive_answers_in_its_own_process_with_its_own_handlers(store: Path) -> None:
    words = (sys.executable, "-W", "ignore", "-c", OWN_HANDLERS, store / "language-id.mar")
    german, french, empty = json.loads(printed(*words, cwd=ROOT, timeout=120).splitlines()[-1])
    assert (german[0], french[0], empty[0]) == (200, 200, 400)
    assert ('"de"' in german[1], '"fr"' in french[1], '"EmptyInput"' in empty[1]) == (True, True, True)
