"""An archive in a process of its own, in the environment of the server: no Ray is needed for that."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.archive import Recipe
from deploy.models import ROOT, model


def test_scoring_imports_no_handlers_since_an_archive_brings_them() -> None:
    names = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for path in (ROOT / "deploy" / "scoring").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {"ts.context", "deploy.scoring.model"} <= names
    assert not [name for name in names if name.partition(".")[0] in ("handlers", "load")]
    assert not [name for name in names if name.startswith("deploy.") and not name.startswith("deploy.scoring")]


def test_archive_answers_in_its_own_process_with_its_own_handlers(tmp_path: Path) -> None:
    Recipe(model("language-id"), export_path=tmp_path).build()
    program = (
        "import json, sys; from pathlib import Path; from deploy.scoring.model import Model\n"
        "model = Model(Path(sys.argv[1]), batch_size=4, threads=1)\n"
        "answers = model.answers(['Guten Morgen, wie geht es dir?', {'text': 'Bonjour'}, b''], {'top_k': 1})\n"
        "import handlers\n"
        "is_own = Path(handlers.__file__).is_relative_to(model.folder)\n"
        "print(json.dumps([is_own, [[each.status, json.loads(each.body)] for each in answers]]))\n"
        "model.close(); print(json.dumps(model.folder.exists()))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "language-id.mar")]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert finished.returncode == 0, finished.stderr
    (is_own, (german, french, empty)), is_left = map(json.loads, finished.stdout.splitlines())
    assert is_own
    assert not is_left
    assert german[0] == french[0] == 200
    assert "de" in json.dumps(german[1])
    assert "fr" in json.dumps(french[1])
    assert (empty[0], empty[1]["type"]) == (400, "EmptyInput")


@pytest.mark.parametrize(
    ("name", "words"), [("none.mar", "FileNotFoundError"), ("text.mar", "BadZipFile"), ("folder", "MANIFEST.json")]
)
def test_what_is_no_archive_is_an_error(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "text.mar").write_text("text")
    (tmp_path / "folder").mkdir()
    program = "import sys; from pathlib import Path; from deploy.scoring.model import Model\n"
    program += "Model(Path(sys.argv[1]), batch_size=1)"
    command = [sys.executable, "-c", program, str(tmp_path / name)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert finished.returncode == 1
    assert words in finished.stderr
