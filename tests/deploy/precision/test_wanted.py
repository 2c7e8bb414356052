"""What archive.sh refuses before anything takes long, in one line that says what to give."""

from pathlib import Path
from typing import Any

import pytest

from deploy.archive import Recipe, main
from deploy.models import model
from deploy.precision.wanted import Wanted, processor
from handlers.errors import InvalidConfig


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    photographs, empty, lines = tmp_path / "photographs", tmp_path / "empty", tmp_path / "texts.txt"
    photographs.mkdir()
    empty.mkdir()
    (photographs / "one.jpg").write_bytes(b"\xff\xd8")
    (empty / ".DS_Store").write_bytes(b"\x00")
    lines.write_text("A text.\n\nAnother.\n", encoding="utf-8")
    return {"photographs": photographs, "empty": empty, "texts": lines, "gone": tmp_path / "gone"}


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "nothing to calibrate images": ("mobilenet-v2", {}, "needs --calibrate FOLDER, of images, at least 10"),
    "nothing to calibrate texts": ("sentence-embedding", {}, "needs --calibrate FILE, of texts, one a line"),
    "nothing to calibrate questions": ("question-answering", {}, 'of lines {"question": ..., "context": ...}'),
    "translation": ("translation", {}, "translation runs in int8 by itself"),
    "tokenization": ("tokenizer", {}, "this is tokenization"),
    "tensors": ("mnist", {}, "this is tensors"),
    "torch": ("mobilenet-v2", {"engine": "torch", "calibrate": "photographs"}, "leave out --engine torch"),
    "no such place": ("mobilenet-v2", {"calibrate": "gone"}, "gone: No such file or directory"),
    "empty folder": ("mobilenet-v2", {"calibrate": "empty"}, "empty: no inputs in it"),
    "images in a file": ("mobilenet-v2", {"calibrate": "texts"}, "images come as a folder of them"),
    "the same twice": (
        "sentence-embedding",
        {"calibrate": "texts", "validate": "texts"},
        "--validate has the inputs of --calibrate",
    ),
    "nothing to prove": ("mnist", {"precision": None, "validate": "texts"}, "no precision of this archive to prove"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_recipe_that_cannot_be_is_refused_in_words(case: str, places: dict[str, Path], tmp_path: Path) -> None:
    name, given, words = REFUSED[case]
    calibrate, validate = (places[given[each]] if each in given else None for each in ("calibrate", "validate"))
    recipe = Recipe(
        model(name),
        engine=given.get("engine", "auto"),
        export_path=tmp_path / "store",
        wanted=Wanted(given.get("precision", "int8"), calibrate, validate),
    )
    for way in (recipe.find, recipe.build):
        with pytest.raises(InvalidConfig) as raised:
            way()
        assert words in str(raised.value)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mobilenet-v2", "--calibrate", "x"], "--calibrate belongs to --precision int8"),
        (["--all", "--precision", "int8", "--calibrate", "x"], "belong to models of one kind"),
        (["mobilenet-v2", "--precision", "int4"], "invalid choice: 'int4'"),
        (["mobilenet-v2", "--min-agreement", "99"], "'99' is no number from 0 to 1"),
        (["mobilenet-v2", "--min-agreement", "nan"], "'nan' is no number from 0 to 1"),
    ],
)
def test_command_line_that_means_nothing_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert words in capsys.readouterr().err


def test_what_was_asked_for_is_another_where_an_input_is(places: dict[str, Path]) -> None:
    wanted = Wanted("int8", places["photographs"])
    first = wanted.identity()
    assert wanted.identity() == first
    assert len({first, Wanted("int8", places["photographs"], least=0.9).identity(), Wanted().identity()}) == 3
    (places["photographs"] / "two.jpg").write_bytes(b"\xff\xd8")
    assert wanted.identity() != first
    lines = Wanted("int8", places["texts"])
    before = lines.identity()
    places["texts"].write_text("One text.\n", encoding="utf-8")
    assert lines.identity() != before


def test_processor_is_what_linux_says_of_it(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("model name\t: x\nflags\t\t: fpu amx_int8 sse avx512_vnni avx2\nflags\t\t: fpu\n")
    assert processor(path) == "amx_int8 avx2 avx512_vnni"
    assert processor(tmp_path / "none") == ""
