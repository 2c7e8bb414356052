"""Builds the archives that translation is compared by: of this code, and of the commit before it had CTranslate2.

CHECKPOINT, settings -> NAME.mar of this code
                     -> NAME.mar by the code of BEFORE, in a process of its own, where this copy has that commit
"""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml

from deploy.archive import Recipe
from deploy.models import ROOT, Model, model
from load.bench.peers import BenchError
from load.bench.progress import aside, progress

# A folder of Helsinki-NLP/opus-mt-en-fr: the one that the variable names, or one beside the repository.
CHECKPOINT = Path(os.environ.get("MARIAN", ROOT.parent / "shared" / "models" / "opus-mt-en-fr"))
# The last commit whose translation ran on generate().
BEFORE = "75b1ac21e7f300425ec8edbf78ece28bb0b45109"

# Builds an archive with the code of the folder that it runs in: the checkpoint, the model as JSON, the store.
BUILD = """
import json, sys
from pathlib import Path
from deploy.archive import Recipe
from deploy.models import Model
checkpoint, entry, store = sys.argv[1:]
entry = json.loads(entry)
entry = Model(**{**entry, "folder": Path(entry["folder"])})
Recipe(entry, checkpoint, engine="torch", export_path=Path(store)).build()
"""


def build_now(name: str, store: Path, work: Path, settings: Mapping[str, Any] | None = None) -> None:
    """Build an archive of this code.

    Args:
        name: the archive's.
        store: the folder to put it into.
        work: a folder for its configuration.
        settings: of its model-config.yaml, in place of the example's.
    """
    with aside():
        Recipe(_entry(name, work, settings, model("translation").folder), str(CHECKPOINT), export_path=store).build()


def build_before(name: str, store: Path, work: Path, settings: Mapping[str, Any] | None = None) -> bool:
    """Build an archive by the commit before; False, with a line of progress, where this copy does not have it.

    Raises:
        BenchError: it has it, and it does not build.
    """
    code = work / "before"
    if not code.is_dir():
        told = subprocess.run(["git", "archive", "--format=tar", BEFORE], cwd=ROOT, capture_output=True, check=False)
        if told.returncode != 0:
            progress(f"this copy of the repository lacks {BEFORE[:7]}, which is left out")
            return False
        with tarfile.open(fileobj=BytesIO(told.stdout)) as files:
            files.extractall(code, filter="data")
    entry = _entry(name, work, settings, code / "examples" / "translation")
    described = {name: getattr(entry, name) for name in ("name", "handler", "version")}
    built = subprocess.run(
        [
            sys.executable,
            "-c",
            BUILD,
            str(CHECKPOINT),
            json.dumps({**described, "folder": str(entry.folder)}),
            str(store),
        ],
        cwd=code,
        env={**os.environ, "PYTHONPATH": f"{code}{os.pathsep}{code / 'client'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        raise BenchError(f"{BEFORE[:7]} builds no archive: {built.stderr.strip().rpartition(chr(10))[2]}")
    return True


def _entry(name: str, work: Path, settings: Mapping[str, Any] | None, example: Path) -> Model:
    """The example under another name, in a folder of its own where its settings are others."""
    entry = replace(model("translation"), name=name, folder=example)
    if settings is None:
        return entry
    folder = work / "settings" / name
    folder.mkdir(parents=True)
    (folder / "model-config.yaml").write_text(yaml.safe_dump(dict(settings)))
    return replace(entry, folder=folder)
