"""What is read from files and folders, and in which order it is sent."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from load.errors import InputError
from load.generate.inputs import Input, Inputs, read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "b.PNG").write_bytes(b"png")
    (tmp_path / "images" / "a.jpg").write_bytes(b"jpg")
    (tmp_path / "images" / ".hidden").write_bytes(b"no")
    (tmp_path / "texts.txt").write_text("one\n\n  two \n", encoding="utf-8")
    (tmp_path / "many.jsonl").write_text('{"a": 1}\n[2]\n')
    (tmp_path / "one.json").write_text('{"data": [1, 2]}')
    (tmp_path / "other").write_bytes(b"?")
    listed = {"data": [{"TORCHSERVE_INPUT": ["images/a.jpg"]}, [{"TORCHSERVE_INPUT": ["one.json"]}]]}
    (tmp_path / "listed.json").write_text(json.dumps(listed))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("images", [Input(b"jpg", "image/jpeg", "a.jpg"), Input(b"png", "image/png", "b.PNG")]),
        (
            "texts.txt",
            [
                Input(b"one", "text/plain; charset=utf-8", "texts.txt:1"),
                Input(b"two", "text/plain; charset=utf-8", "texts.txt:3"),
            ],
        ),
        (
            "many.jsonl",
            [Input(b'{"a": 1}', "application/json", "many.jsonl:1"), Input(b"[2]", "application/json", "many.jsonl:2")],
        ),
        ("one.json", [Input(b'{"data": [1, 2]}', "application/json", "one.json")]),
        (
            "listed.json",
            [Input(b"jpg", "image/jpeg", "a.jpg"), Input(b'{"data": [1, 2]}', "application/json", "one.json")],
        ),
        ("other", [Input(b"?", "application/octet-stream", "other")]),
    ],
)
def test_read_of_a_path_goes_by_its_name(folder: Path, name: str, expected: list[Input]) -> None:
    assert list(read([folder / name])) == expected


def test_read_with_a_content_type_gives_it_to_all(folder: Path) -> None:
    assert {item.content_type for item in read([folder], "text/x-own")} == {"text/x-own"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read .*given.json: No such file"),
        ("{", "given.json is not JSON"),
        ('{"data": [{"TORCHSERVE_INPUT": "a"}]}', "every entry of"),
        ('{"data": [{"TORCHSERVE_INPUT": ["absent.jpg"]}]}', "cannot read .*absent.jpg"),
        ('{"data": [{"TORCHSERVE_INPUT": []}]}', "nothing to send"),
    ],
)
def test_read_of_what_cannot_be_sent_says_why(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "given.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        read([path])


def test_read_of_an_empty_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to send"):
        read([tmp_path])


def test_order_in_turn_begins_with_another_input_for_every_client() -> None:
    inputs = Inputs.of([b"a", b"b", b"c"])
    assert [list(islice(inputs.order(client), 4)) for client in (0, 1, 5)] == [[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]]


def test_order_of_a_seed_is_random_even_and_the_same_every_time() -> None:
    inputs = Inputs([Input(b"a"), Input(b"b"), Input(b"c")], seed=5)
    order = list(islice(inputs.order(0), 3000))
    assert order == list(islice(inputs.order(0), 3000)) != list(islice(inputs.order(1), 3000))
    assert all(900 < count < 1100 for count in Counter(order).values())
    assert list(islice(Inputs(inputs.items, seed=6).order(0), 3000)) != order
