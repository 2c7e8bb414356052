"""Several archives in one process: which can be, and where their modules are."""

import json
import zipfile
from pathlib import Path

import pytest

from deploy.loader import NotTogether, _Others, check_together
from tests.tables import table


def archive(folder: Path, name: str, files: dict[str, str]) -> Path:
    path = folder / f"{name.replace('/', '-')}{len(list(folder.iterdir()))}.mar"
    with zipfile.ZipFile(path, "w") as content:
        content.writestr("MAR-INF/MANIFEST.json", json.dumps({"model": {"modelName": name}}))
        content.writestr("build.json", json.dumps({"files": files} if files else {}))
    return path


OWN = {"handlers/base.py": "1", "tensors.py": "2", "function/infer.py": "3", "model-config.yaml": "4"}


@table(
    ("b", OWN, None),
    ("b", {**OWN, "function/infer.py": "0", "model-config.yaml": "0", "other.py": "0"}, None),
    ("b", {**OWN, "handlers/base.py": "0"}, r"handlers/base.py differs in a0.mar and b1.mar: build both again"),
    ("b", {**OWN, "tensors.py": "0"}, r"tensors.py differs in a0.mar and b1.mar: serve them apart"),
    ("b", {**OWN, "function/own.py": "0"}, None),
    ("a", OWN, "a0.mar and a1.mar are both of the model a; serve them apart"),
    ("b", {}, "b1.mar is no archive of .*; serve it apart from others"),
)
def test_archives_of_equal_modules_can_be_together(
    name: str, files: dict[str, str], rejected: str | None, tmp_path: Path
) -> None:
    archives = [archive(tmp_path, "a", OWN), archive(tmp_path, name, files)]
    if rejected is None:
        check_together(archives)
    else:
        with pytest.raises(NotTogether, match=rejected):
            check_together(archives)
    # Alone each may be anything.
    check_together(archives[1:])


def test_module_that_the_first_archive_lacks_is_found_in_another(tmp_path: Path) -> None:
    others = _Others()
    others.folders = [tmp_path / "a", tmp_path / "b"]
    (inner := tmp_path / "b" / "handlers" / "text").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    (inner / "own.py").touch()
    found = others.find_spec("handlers.text.own")
    assert found is not None and found.origin == str(inner / "own.py")
    assert others.find_spec("handlers.text.none") is None and others.find_spec("text.own") is None
