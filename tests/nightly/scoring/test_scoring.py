"""Ray and a TorchServe with the same archive answer the same: photographs and texts, good and bad."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.models import ROOT
from deploy.run.server import Server
from load.bench.peer_process import build_environment
from tests.e2e.conftest import MOBILENET, Registrations, printed
from tests.photographs import crops, photograph
from torchserve_client import Client, ClientError

EMBEDDING = "sentence-embedding"
PYTHON = ROOT / ".extras" / "ray" / "bin" / "python"


class Ray:
    """A process of .extras/ray that scores what it is sent: program.py."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None and process.stdout is not None
        self._sent, self._printed = process.stdin, process.stdout

    def ask(self, **order: Any) -> Any:
        """One order; {"rows": ...} or {"failed": the error}."""
        self._sent.write(json.dumps(order) + "\n")
        self._sent.flush()
        return json.loads(next(line for line in self._printed if line.startswith('{"')))

    def scored(self, **order: Any) -> list[dict[str, Any]]:
        answer = self.ask(**order)
        assert "failed" not in answer, answer["failed"]
        assert all((row["answer"] is None) != (row["error"] is None) for row in answer["rows"])
        return list(answer["rows"])


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ray]:
    build_environment("ray")
    home = tmp_path_factory.mktemp("ray")
    # Ray keeps a token in the home folder, and its workers find the project here.
    own = {"HOME": str(home), "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    with (home / "stderr").open("w") as errors, subprocess.Popen(
        [PYTHON, "-W", "ignore", "-m", "tests.nightly.scoring.program"],
        cwd=ROOT, env={**os.environ, **own}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
    ) as process:  # fmt: skip
        try:
            yield Ray(process)
            process.communicate(timeout=60)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def store(archive: Callable[[str], str], model_store: Path, registrations: Registrations) -> Path:
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
    ray: Ray, server: Server, store: Path, tmp_path: Path
) -> None:
    good = [photograph("chelsea"), photograph("coffee"), photograph("china"), *crops(6, sides=(300, 400))]
    bodies = [*good, good[0][:1000], b"no photograph", b"", *good]
    paths = [str(tmp_path / f"{number:03}") for number in range(len(bodies))]
    for path, body in zip(paths, bodies, strict=True):
        Path(path).write_bytes(body)
    expected = dict(zip(paths, served(server, MOBILENET, bodies, top_k=1), strict=True))
    assert [each.get("code") for each in expected.values()].count(None) == 2 * len(good)
    arguments = {"archive": str(store / f"{MOBILENET}.mar"), "batch_size": 8, "options": {"top_k": 1}, "threads": 1}
    rows = ray.scored(rows=[{"path": path} for path in paths], read="path", column="bytes", **arguments)
    assert [set(row) for row in rows] == [{"path", "answer", "error"}] * len(paths)
    assert sorted(row["path"] for row in rows) == paths
    for row in rows:
        assert_same(row, expected[row["path"]])


def test_texts_and_objects_get_the_answers_of_the_server_and_rows_that_hold_none_an_error(
    ray: Ray, server: Server, store: Path
) -> None:
    archive = str(store / f"{EMBEDDING}.mar")
    texts = [f"Snow fell on the mountains, {'and on the hills, ' * number}." for number in range(12)]
    texts += ["", "{not json"]
    message = "an input is bytes, a text or an object, not NoneType"
    expected = [*served(server, EMBEDDING, texts), {"code": 0, "type": "InvalidPayload", "message": message}]
    sent: list[dict[str, Any]] = [{"id": number, "t": text} for number, text in enumerate([*texts, None])]
    rows = sorted(ray.scored(rows=sent, archive=archive, column="t", blocks=1), key=lambda row: int(row["id"]))
    assert [row["t"] for row in rows] == [*texts, None]
    objects: list[dict[str, Any]] = [{"text": texts[0]}, {"text": texts[1], "nonsense": 1}, {"other": "x"}]
    expected += served(server, EMBEDDING, objects)
    assert [each["code"] for each in expected[-2:]] == [400, 400]
    rows += ray.scored(rows=[{"o": each} for each in objects], archive=archive, column="o", blocks=1)
    assert [set(row) for row in rows[-3:]] == [{"o", "answer", "error"}] * 3
    for row, each in zip(rows, expected, strict=True):
        assert_same(row, each)


OWN_HANDLERS = """
import json, sys
from pathlib import Path
from deploy.scoring.model import Model
assert not [name for name in sys.modules if name.partition(".")[0] in ("handlers", "load")]
model = Model(Path(sys.argv[1]), batch_size=4, threads=1)
answers = model.answers(["Guten Morgen, wie geht es dir?", {"text": "Bonjour"}, b""], {"top_k": 1})
import handlers
assert Path(handlers.__file__).is_relative_to(model.folder)
print(json.dumps([[each.status, each.body.decode()] for each in answers]))
"""


def test_archive_answers_in_its_own_process_with_its_own_handlers(store: Path) -> None:
    words = [sys.executable, "-W", "ignore", "-c", OWN_HANDLERS, store / "language-id.mar"]
    german, french, empty = json.loads(printed(*words, cwd=ROOT, timeout=120).splitlines()[-1])
    assert (german[0], french[0], empty[0]) == (200, 200, 400)
    assert ('"de"' in german[1], '"fr"' in french[1], '"EmptyInput"' in empty[1]) == (True, True, True)
