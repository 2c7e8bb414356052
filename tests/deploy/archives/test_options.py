"""The options of a build, which a later one by `serve` or `start` has, too."""

from pathlib import Path

import pytest

from deploy.archives import options
from deploy.archives.arguments import make_recipe, parse_arguments
from deploy.archives.options import hide_places, keep, recall
from deploy.models import model
from handlers.archive_files import BUILD, Build

NAME = "mobilenet-v2"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    for path in (folder / "int8", folder / "random", tmp_path / "beside", folder / "model_store" / f"{NAME}.mar"):
        path.mkdir(parents=True)
    for name, path in (
        ("HOME", folder),
        ("STORE", folder / "model_store"),
        ("RECORDS", folder / ".nodes" / ".options"),
    ):
        monkeypatch.setattr(options, name, path)
    monkeypatch.chdir(folder)
    return folder


def write(home: Path, words: list[str], fingerprint: str = "f1") -> None:
    """Write an archive with the options of a command line, as on the machine that built it."""
    kept, archive = make_recipe(model(NAME), parse_arguments([NAME, *words]), None).options, f"{NAME}.mar"
    build = Build(fingerprint, "weights", False, {}, options=hide_places(kept))
    (home / "model_store" / archive / BUILD).write_text(build.to_json())
    keep(home / "model_store" / archive, "f1", kept)


@pytest.mark.parametrize(
    ("words", "here", "moved"),
    [
        # A folder may have the name of a precision, or of a hub's model.
        ("--weights google/vit --min-chrf 40.0", "--weights google/vit --min-chrf 40.0", ""),
        ("--weights random --precision int8", "--weights random --precision int8", ""),
        ("--weights int8", "--weights {home}/int8", ""),
        ("--weights ../beside", "--weights {beside}", "--weights beside"),
        ("--precision int8 --calibrate ../beside", "--precision int8 --calibrate {beside}", "--calibrate beside"),
        ("--validate int8", "--validate {home}/int8", ""),
    ],
)
def test_options_are_recalled_and_no_folder_of_this_machine_ships(
    words: str, here: str, moved: str, home: Path
) -> None:
    here = here.format(home=home, beside=home.parent / "beside")
    write(home, words.split())
    assert recall(NAME) == (here.split(), "")
    # A store is copied to images and buckets.
    texts = [each.read_text() for each in (home / "model_store").rglob("*") if each.is_file()]
    assert texts and str(home.parent) not in "".join(texts)
    # Another archive of that name, built elsewhere: what is recorded here is not its own.
    write(home, words.split(), "f2")
    assert recall(NAME) == (([], moved) if moved else (here.split(), ""))


def test_lost_folder_foreign_options_and_a_broken_record_are_named_or_passed_over(home: Path) -> None:
    store = home / "model_store"
    write(home, ["--weights", "../beside"])
    (home.parent / "beside").rmdir()
    assert recall(NAME) == ([], f"--weights {home.parent / 'beside'}")
    (home / ".nodes" / ".options" / f"{NAME}.json").write_text('{"fingerprint": ["f1"]')
    assert recall(NAME) == ([], "--weights beside")
    # The archive of a stranger.
    build = Build("f1", "weights", False, {}, options=["--from", "./evil.mar"])
    (store / f"{NAME}.mar" / BUILD).write_text(build.to_json())
    assert recall(NAME) == ([], "--from ./evil.mar")
