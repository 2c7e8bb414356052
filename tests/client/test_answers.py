import json
from pathlib import Path

import pytest

from torchserve_client import InvalidPayload, Rejected
from torchserve_client.answers import Answers, Request, requests


def folder(root: Path) -> Path:
    for name in ("b.jpg", "a.jpg", "below/c.jpg", ".hidden", ".git/d.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def test_folder_is_one_request_a_file_in_order_without_hidden_ones(tmp_path: Path) -> None:
    root = folder(tmp_path / "photos")
    assert requests(root, set(), 64) == [
        Request(("a.jpg",), root / "a.jpg"),
        Request(("b.jpg",), root / "b.jpg"),
        Request(("below/c.jpg",), root / "below/c.jpg"),
    ]
    assert [request.names for request in requests(root, {"a.jpg", "below/c.jpg"}, 64)] == [("b.jpg",)]
    assert requests(root, {"a.jpg", "b.jpg", "below/c.jpg"}, 64) == []


def test_lines_are_numbered_as_in_the_file_and_empty_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeff첫째\n\nsecond\u2028still second\r\n   \nthird".encode())
    assert requests(path, set(), 2) == [
        Request(("1", "3"), ["첫째", "second\u2028still second"]),
        Request(("5",), ["third"]),
    ]
    assert requests(path, {"1"}, 2) == [Request(("3", "5"), ["second\u2028still second", "third"])]


def test_source_that_is_none_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.txt").write_text("\n \n")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    for name, words in {
        "empty": "nothing in it",
        "blank.txt": "nothing in it",
        "photo.jpg": "neither a folder nor a file of UTF-8 lines",
        "none": "No such file",
    }.items():
        with pytest.raises(InvalidPayload, match=words):
            requests(tmp_path / name, set(), 64)


def test_answers_are_lines_that_name_their_input(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with Answers.open(path) as answers:
        assert answers.answered == set()
        answers.write(["a", "ö\n"], [{"cat": 0.5}, Rejected("no", 422, "CorruptInput")])
        answers.write(["c"], [None])
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [
        {"input": "a", "answer": {"cat": 0.5}},
        {"input": "ö\n", "error": {"code": 422, "type": "CorruptInput", "message": "no"}},
        {"input": "c", "answer": None},
    ]


def test_answers_are_there_before_the_file_is_closed(tmp_path: Path) -> None:
    with Answers.open(tmp_path / "answers.jsonl") as answers:
        answers.write(["a"], [1])
        assert (tmp_path / "answers.jsonl").read_text() == '{"input":"a","answer":1}\n'


@pytest.mark.parametrize("cut", range(1, len('{"input":"c","answer":[1,2]}')))
def test_line_that_a_kill_cut_off_is_asked_for_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "answers.jsonl"
    whole = '{"input":"a","answer":1}\n{"input":"b","error":{"code":503}}\n'
    path.write_text(whole + '{"input":"c","answer":[1,2]}'[:cut])
    with Answers.open(path) as answers:
        assert answers.answered == {"a"}
        answers.write(["b"], [2])
    assert path.read_text() == '{"input":"a","answer":1}\n{"input":"b","answer":2}\n'
    assert [each.name for each in tmp_path.iterdir()] == ["answers.jsonl"]


def test_line_that_lacks_only_its_end_counts_and_the_next_one_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"input":"a","answer":1}')
    with Answers.open(path) as answers:
        assert answers.answered == {"a"}
        answers.write(["b"], [2])
    assert path.read_text() == '{"input":"a","answer":1}\n{"input":"b","answer":2}\n'


def test_input_that_was_answered_twice_is_kept_once(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"input":"a","answer":1}\n{"input":"a","answer":1}\n')
    with Answers.open(path) as answers:
        assert answers.answered == {"a"}
    assert path.read_text() == '{"input":"a","answer":1}\n'


@pytest.mark.parametrize(
    "content",
    [b"\xff\xd8\xff photograph", b"a note\n", b'{"input":"a","answer":1}\n{"other": 1}\n', b'{"other": 1}', b"[1]\n"],
)
def test_file_that_is_not_ours_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "precious.jpg"
    path.write_bytes(content)
    with pytest.raises(InvalidPayload, match="is no answer of ours"):
        Answers.open(path)
    assert path.read_bytes() == content
