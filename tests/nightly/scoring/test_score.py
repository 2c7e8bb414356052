"""Ray and a TorchServe with the same archive say the same: of photographs and texts, good and bad."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.archive import Recipe
from deploy.models import model
from deploy.sandbox import started
from deploy.server import Server
from tests.nightly.scoring.conftest import Ray, inputs
from tests.photographs import crops, photograph
from torchserve_client import Client, ClientError

pytestmark = [pytest.mark.timeout(900)]

MOBILENET, EMBEDDING = "mobilenet-v2", "sentence-embedding"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    for name in (MOBILENET, EMBEDDING):
        Recipe(model(name), export_path=folder).build()
    return folder


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Server]:
    with started(store) as running:
        for name in (MOBILENET, EMBEDDING):
            running.register(name, f"{name}.mar", batch_size=8, max_batch_delay_ms=20, workers=1)
        yield running


def served(server: Server, name: str, payloads: list[Any], **options: Any) -> list[Any]:
    """What the server says of each; of an error {"code", "type", "message"}."""
    with Client(server.settings.inference_url) as client:
        answers = []
        for payload in payloads:
            try:
                answers.append(client.predict(name, payload, **options))
            except ClientError as error:
                answers.append(error.to_json())
        return answers


def said(rows: list[dict[str, Any]]) -> list[Any]:
    """What Ray says of each: one of both columns."""
    assert all((row["answer"] is None) != (row["error"] is None) for row in rows)
    return [row["error"] if row["answer"] is None else json.loads(row["answer"]) for row in rows]


def same(answer: Any, other: Any) -> bool:
    """Whether two answers say the same, but for what a micro-batch of another size changes of a number."""
    if isinstance(answer, dict) and "code" in answer:
        return bool(answer == other)
    if isinstance(answer, dict):
        return bool(answer.keys() == other.keys()) and answer == pytest.approx(other, abs=0.02)
    return len(answer) == len(other) == 384 and answer == pytest.approx(other, abs=0.01)


def test_photographs_get_the_answers_of_the_server_and_bad_ones_its_errors(
    ray: Ray, server: Server, store: Path, tmp_path: Path
) -> None:
    good = [photograph("chelsea"), photograph("coffee"), photograph("china"), *crops(6, sides=(300, 400))]
    bodies = [*good, good[0][:1000], b"no photograph", b"", *good]
    rows = [{"path": path} for path in inputs(tmp_path, bodies)]
    arguments = {"archive": str(store / f"{MOBILENET}.mar"), "batch_size": 8, "options": {"top_k": 1}, "threads": 1}
    expected = served(server, MOBILENET, bodies, top_k=1)
    assert [each.get("code") for each in expected].count(None) == 2 * len(good)
    scored = ray.rows(rows=rows, read="path", column="bytes", **arguments)
    assert [set(row) for row in scored] == [{"path", "answer", "error"}] * len(rows)
    found = {row["path"]: answer for row, answer in zip(scored, said(scored), strict=True)}
    assert len(found) == len(rows)
    assert all(same(found[row["path"]], each) for row, each in zip(rows, expected, strict=True))
    # By their paths, one of which leads nowhere.
    rows[3]["path"] += ".none"
    by_path = ray.rows(rows=rows, column="path", kind="path", **arguments)
    found = {row["path"]: answer for row, answer in zip(by_path, said(by_path), strict=True)}
    nowhere = {"code": 0, "type": "InvalidPayload", "message": "cannot be read: No such file or directory"}
    assert found.pop(rows[3]["path"]) == nowhere
    assert all(same(found[r["path"]], e) for r, e in zip(rows, expected, strict=True) if r is not rows[3])


def test_texts_and_objects_get_the_answers_of_the_server_and_rows_that_hold_none_an_error(
    ray: Ray, server: Server, store: Path
) -> None:
    texts = [f"Snow fell on the mountains, {'and on the hills, ' * number}." for number in range(12)]
    archive = str(store / f"{EMBEDDING}.mar")
    expected = served(server, EMBEDDING, [*texts, "", "{not json"])
    rows: list[dict[str, Any]] = [{"id": n, "t": text} for n, text in enumerate([*texts, "", "{not json", None])]
    scored = sorted(ray.rows(rows=rows, archive=archive, column="t", blocks=1), key=lambda row: row["id"])
    assert [row["t"] for row in scored] == [row["t"] for row in rows]
    *found, null = said(scored)
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))
    assert null == {
        "code": 0, "type": "InvalidPayload", "message": "an input is bytes, a text or an object, not NoneType",
    }  # fmt: skip
    objects: list[dict[str, Any]] = [{"text": texts[0]}, {"text": texts[1], "nonsense": 1}, {"other": "x"}]
    scored = ray.rows(rows=[{"o": each} for each in objects], archive=archive, column="o", columns=[], blocks=1)
    assert [set(row) for row in scored] == [{"answer", "error"}] * 3
    expected = served(server, EMBEDDING, objects)
    assert [each["code"] for each in expected[1:]] == [400, 400]
    assert all(same(one, other) for one, other in zip(said(scored), expected, strict=True))


def test_archive_that_is_changed_is_not_served(ray: Ray, store: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(store / f"{EMBEDDING}.mar", tmp_path / "folder", "zip")
    with (tmp_path / "folder" / "model.bin").open("r+b") as file:
        file.write(b"\xff\xff")
    answer = ray.ask(rows=[{"t": "a"}], archive=str(tmp_path / "folder"), column="t")
    assert "InvalidConfig" in answer["failed"]
    assert "model.bin" in answer["failed"]
