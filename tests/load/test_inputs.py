"""Requests by the names of files."""

from itertools import islice
from pathlib import Path

import pytest

from load.errors import LoadError
from load.inputs import Input, Inputs, read
from tests.tables import table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "b.PNG").write_bytes(b"png")
    (tmp_path / "images" / "a.jpg").write_bytes(b"jpg")
    (tmp_path / "images" / ".hidden").write_bytes(b"no")
    (tmp_path / "texts.txt").write_text("one\n\n  two \n", encoding="utf-8")
    (tmp_path / "many.jsonl").write_text("[1]\n")
    (tmp_path / "one.json").write_text('{"data": [1, 2]}')
    (tmp_path / "other").write_bytes(b"?")
    return tmp_path


JPG, ONE = Input(b"jpg", "image/jpeg", "a.jpg"), Input(b'{"data": [1, 2]}', "application/json", "one.json")
TEXT = "text/plain; charset=utf-8"


@table(
    ("images", [JPG, Input(b"png", "image/png", "b.PNG")]),
    ("texts.txt", [Input(b"one", TEXT, "texts.txt:1"), Input(b"two", TEXT, "texts.txt:3")]),
    ("many.jsonl", [Input(b"[1]", "application/json", "many.jsonl:1")]),
    ("one.json", [ONE]),
    ("other", [Input(b"?", "application/octet-stream", "other")]),
)
def test_read_of_a_path_goes_by_its_name(name: str, expected: list[Input], folder: Path) -> None:
    assert list(read([folder / name]).items) == expected


def test_read_with_a_content_type_uses_it_for_all(folder: Path) -> None:
    assert {item.content_type for item in read([folder], "text/x-own").items} == {"text/x-own"}


def test_read_of_what_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"cannot read .*given.json: No such file"):
        read([tmp_path / "given.json"])
    with pytest.raises(LoadError, match="nothing to send"):
        read([tmp_path])


def test_clients_send_the_inputs_in_turn_and_begin_with_different_ones() -> None:
    inputs = Inputs.of([b"a", b"b", b"c"])
    assert [list(islice(inputs.order(client), 4)) for client in (0, 1, 5)] == [[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]]
