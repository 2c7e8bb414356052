import fcntl
from pathlib import Path
from typing import Any

import pytest

from torchserve_client import InvalidPayload, Rejected
from torchserve_client.answers import Answers
from torchserve_client.inputs import Input, Keys

KEYS = Keys("m", {})


def key(content: str) -> str:
    return KEYS.make(content.encode())


def line(name: str, content: str, answer: str = "1") -> str:
    """Return a line of the file for an input's name, its content and the JSON of its answer."""
    return f'{{"input":"{name}","key":"{key(content)}","answer":{answer}}}\n'


def inputs(**named: str) -> list[Input]:
    """Return inputs by name, with their content."""
    return [Input(name, content) for name, content in named.items()]


WHOLE = line("c", "z", "[1,2]").rstrip("\n")


# Within the line's prefix, its name, its key and its answer.
@pytest.mark.parametrize("cut", [1, 11, 30, len(WHOLE) - 1])
def test_line_that_a_kill_cut_off_is_asked_for_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line("a", "x") + '{"input":"b","key":"k","error":{"code":503}}\n' + WHOLE[:cut])
    with Answers(path) as answers:
        assert answers.match(inputs(a="x", b="y", c="z"), KEYS) == 3
        assert [answers.has(name) for name in "abc"] == [True, False, False]
        answers.write(["b"], [key("y")], [2])
    assert path.read_text() == line("a", "x") + line("b", "y", "2")
    assert [each.name for each in tmp_path.iterdir()] == ["answers.jsonl"]


def test_answer_to_another_content_is_set_aside_and_answers_to_absent_inputs_stay(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line("a", "x") + line("b", "old") + line("gone", "z"))
    with Answers(path) as answers:
        assert answers.match(inputs(a="x", b="y"), KEYS) == 2
        assert (answers.earlier, answers.has("a"), answers.has("b")) == (1, True, False)
    assert path.read_text() == line("a", "x") + line("gone", "z")
    assert (tmp_path / "answers.jsonl.old").read_text() == line("b", "old")


def test_file_has_one_writer_at_a_time_even_after_it_was_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line("a", "x") + '{"input":"b","error":{}}\n')
    for _ in range(2):
        with Answers(path) as answers:
            with pytest.raises(InvalidPayload, match=r"answers\.jsonl: another run writes to it; wait for it"):
                Answers(path)
            answers.match(inputs(a="x", b="y"), KEYS)
            with pytest.raises(InvalidPayload, match="another run writes to it"):
                Answers(path)
            answers.write(["c"], ["k"], [Rejected("no")])
    assert path.read_text().startswith(line("a", "x"))


def test_file_that_another_takes_the_place_of_while_it_is_locked_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line("a", "old"))
    lock = fcntl.flock

    def late(*arguments: Any) -> None:
        # Another run ends now and has replaced the file.
        monkeypatch.setattr(fcntl, "flock", lock)
        (tmp_path / "new").write_text(line("a", "x"))
        (tmp_path / "new").replace(path)
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", late)
    with Answers(path) as answers:
        answers.match(inputs(a="x"), KEYS)
        assert answers.earlier == 1
        answers.write(["b"], [key("y")], [2])
    assert path.read_text() == line("a", "x") + line("b", "y", "2")


@pytest.mark.parametrize(
    "content",
    [b"\xff\xd8\xff photograph", b'{"input":"a","answer":1}\n{"other": 1}\n', b"[1]\n"],
)
def test_file_that_is_not_ours_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "precious.jpg"
    path.write_bytes(content)
    with pytest.raises(InvalidPayload, match="is not an answer of `predict`"):
        Answers(path)
    assert path.read_bytes() == content
