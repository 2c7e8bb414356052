"""The command line, of which an invalid one is one line and exit code 2, and the files that it names."""

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from load import LoadError, expect
from load.__main__ import main
from load.arguments import numbers, parser
from load.expect import make_check, matches
from load.inputs import Input, Inputs, read
from load.results import Verdict
from tests.load.fake_server import serving
from tests.tables import table

# No server listens there.
NOWHERE = "http://127.0.0.1:1"


@table(
    ("16", (16,)),
    ("1,2,4", (1, 2, 4)),
    ("1:64:x2", (1, 2, 4, 8, 16, 32, 64)),
    ("10:200:50", (10, 60, 110, 160)),
    ("2:5", (2, 3, 4, 5)),
    ("0.1:0.3:0.1", (0.1, 0.2, pytest.approx(0.3))),
)
def test_numbers_of_a_range_are_listed(text: str, expected: tuple[float, ...]) -> None:
    assert numbers(float)(text) == expected


@pytest.mark.parametrize(
    "text", ["", "a", "1,", "0", "-1", "1:", "1:2:3:4", "5:1", "1:8:x1", "1:8:0", "0:8:x2", "inf", "nan", "1:inf:1"]
)
def test_numbers_of_no_range_are_refused_with_an_example(text: str) -> None:
    for kind in (float, int):
        with pytest.raises(argparse.ArgumentTypeError, match="above 0 as 16, 1,2,4, 10:200:10 or 1:64:x2"):
            numbers(kind)(text)
    with pytest.raises(argparse.ArgumentTypeError, match="whole numbers"):
        numbers(int)("1.5")


def test_short_flags_and_ranges_are_parsed() -> None:
    words = "run -m m -u host:80 -x 2 -l 5 -i a.json --concurrency 1:4 --repeats 1"
    found = vars(parser().parse_args(words.split()))
    expected = {"model": ["m"], "url": "http://host:80", "model_version": "2", "latency_threshold": 5, "repeats": 1}
    assert found.items() >= {**expected, "input": [Path("a.json")], "concurrency": (1, 2, 3, 4)}.items()
    assert parser().parse_args(["run", "-m", "m", "-i", "a", "--rate", "10:30:10"]).rate == (10, 20, 30)


@table(
    ((), "one of the arguments --concurrency"),
    (("--concurrency", "1", "--rate", "2"), "not allowed with"),
    (("--concurrency", "many"), "'many': write whole numbers"),
    (("--concurrency", "1", "--duration", "soon"), "'soon' is not a duration: write 120, 120s, 500ms or 2m"),
    (("--concurrency", "1", "--url", "http://a:1,http://b:1"), "the address of a server: write http://HOST:PORT"),
    (("--concurrency", "1", "--percentile", "101"), "'101' is not a number above 0, at most 100"),
    (("--concurrency", "1", "--scenario", "Server"), "unrecognized arguments: --scenario"),
    (("--rate", "1:9", "--binary-search"), "unrecognized arguments: --binary-search"),
    (("--concurrency", "1", "--input", "absent.jpg"), "cannot read absent.jpg"),
    (("--concurrency", "1", "--expect", "absent.json"), "cannot read absent.json"),
    (("--concurrency", "1", "--expect", __file__), "test_arguments.py is not JSON"),
    (("--concurrency", "1", "--expect", "two.json"), "two.json has no answer for texts.txt:2: write {name of"),
    (("--concurrency", "1", "--model", "n", "--out", "run.json"), "name a folder"),
    (("--concurrency", "1", "--out", "/dev/null/run.json"), "cannot write /dev/null/run.json"),
    (("--concurrency", "1", "--html", "."), "cannot write .: Is a directory"),
    (("--concurrency", "1", "--url", NOWHERE), f"nothing answers at {NOWHERE}: start the server"),
    (("--concurrency", "1", "--model-version", "bad"), "first request, texts.txt:1, was 415: no image"),
)
def test_call_that_makes_no_sense_is_one_line_and_exit_code_2(
    more: Sequence[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="no image", status=415 if request.match_info["model"] == "m/bad" else 200)

    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("cat\ncup")
    Path("two.json").write_text('{"texts.txt:1": {}}')
    with serving(answer, path="/predictions/{model:.*}") as url:
        call = ["run", "-u", url, "--management-url", NOWHERE, "-m", "m", "-i", "texts.txt", *more]
        try:
            exit_code = main(call)
        except SystemExit as ended:
            exit_code = int(ended.code or 0)
    output = capsys.readouterr()
    assert (exit_code, output.out) == (2, "")
    (line,) = output.err.splitlines()
    assert line.startswith("load: ")
    assert words in line


def test_search_without_a_latency_threshold_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["search", "-u", NOWHERE, "-m", "m", "-i", __file__, "--rate", "1:9"])
    assert "the following arguments are required: -l/--latency-threshold" in capsys.readouterr().err


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
    assert {item.content_type for item in read([folder / name], "text/x-own").items} == {"text/x-own"}


def test_read_of_what_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"cannot read .*given.json: No such file"):
        read([tmp_path / "given.json"])
    with pytest.raises(LoadError, match="nothing to send"):
        read([tmp_path])


def test_clients_send_the_inputs_in_turn_and_begin_with_different_ones() -> None:
    inputs = Inputs.of([b"a", b"b", b"c"])
    assert [list(islice(inputs.order(client), 4)) for client in (0, 1, 5)] == [[0, 1, 2, 0], [1, 2, 0, 1], [2, 0, 1, 2]]


TWO = [Input(b"", name="cat.jpg"), Input(b"", name="cup.jpg")]


@table(
    ({"cat": 0.7}, {"cat": 0.705, "dog": 0.2}, True),
    ({"cat": 0.7}, {"cat": 0.75}, False),
    ({"cat": 0.7}, {"dog": 0.7}, False),
    # A missing number below the tolerance: the least probable label may change.
    ({"cat": 0.7, "dog": 0.005}, {"cat": 0.7, "cow": 0.006}, True),
    ({"cat": 0.7, "dog": 0.5}, {"cat": 0.7}, False),
    ([{"label": "ko", "score": 1.0}], [{"label": "ja", "score": 1.0}], False),
    ([1, 2], [1, 2, 3], False),
    (True, 1.0, False),
    (0.5, True, False),
    ("text", "other", False),
)
def test_answer_matches_what_is_expected_of_it(expected: Any, answer: Any, is_right: bool) -> None:
    assert matches(expected, answer, 0.01) is is_right


@table(
    (0, b'{"cat": 0.9}', Verdict.RIGHT),
    (0, b'{"cup": 0.8}', Verdict.SWAPPED),
    (1, b'{"cup": 0.8}', Verdict.RIGHT),
    (1, b'{"cup": 0.1}', Verdict.WRONG),
    (1, b"not JSON", Verdict.WRONG),
    (1, b"[" * 100_000, Verdict.WRONG),
)
def test_wrong_answer_is_told_from_another_requests(source: int, answer: bytes, verdict: Verdict) -> None:
    check = make_check([{"cat": 0.9}, {"cup": 0.8}])
    # Twice: the second verdict is cached.
    assert [check(source, answer) for _ in range(2)] == [verdict, verdict]


@table(
    ({"cat.jpg": {"cat": 1}, "cup.jpg": {"cup": 1}, "more": 0}, TWO, [{"cat": 1}, {"cup": 1}]),
    ({"cat": 1}, TWO[:1], [{"cat": 1}]),
    ([0.5, 0.5], TWO[:1], [[0.5, 0.5]]),
)
def test_expected_answers_are_read_by_name(content: Any, inputs: list[Input], expected: Any, tmp_path: Path) -> None:
    (tmp_path / "expected.json").write_text(json.dumps(content))
    assert expect.read(tmp_path / "expected.json", inputs) == expected
