"""archive.sh's program, on a model list and a model store of the test's own."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.archives.__main__ import main
from deploy.models import ROOT


def without_steps(text: str) -> str:
    """Drop the lines about steps of two seconds or more: a busy machine has some."""
    return re.sub(r"^.* \(\d+ s\)\n", "", text, flags=re.MULTILINE)


class ArchiveSh:
    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.models = folder / "models.yaml"
        # The stdout in lines, and the stderr, of the last build that succeeded.
        self.out: list[str] = []
        self.err = ""
        self._capture = capture

    def write_list(self, name: str, handler: str, weights: Any = None, config: Any = None, **more: Any) -> Path:
        """Write a model list of one entry, and its model-config.yaml where there is one; returns the model's folder."""
        entry = {"task": handler, "version": "3", **({} if weights is None else {"weights": weights}), **more}
        self.models.write_text(yaml.safe_dump({name: entry}))
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        if config is not None:
            (folder / "model-config.yaml").write_text(yaml.safe_dump({"handler": config}))
        return folder

    def build(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.store / name / "build.json").read_text()))

    def config(self, name: str) -> dict[str, Any]:
        return dict(yaml.safe_load((self.store / name / "model-config.yaml").read_text()))

    def arguments(self, *arguments: str) -> list[str]:
        """The command line of a build of the list into the store, as a folder unless another format is named."""
        places = ["--models", str(self.models), "--export-path", str(self.store)]
        return [*places, "--archive-format", "no-archive", *arguments]

    def __call__(self, *arguments: str) -> list[str]:
        """Build, which succeeds; returns the lines of stdout."""
        self._capture.readouterr()
        code, printed = main(self.arguments(*arguments)), self._capture.readouterr()
        assert code == 0, printed.err
        self.out, self.err = printed.out.splitlines(), without_steps(printed.err)
        return self.out

    def rejected(self, *arguments: str) -> str:
        """Build, which fails with exit code 1; returns the one line of stderr without the program's name."""
        self._capture.readouterr()
        assert main(self.arguments(*arguments)) == 1
        (line,) = without_steps(self._capture.readouterr().err).splitlines()
        assert line.startswith("torchserve-batching archive: ") and not list(self.store.glob(".build-*"))
        return line.removeprefix("torchserve-batching archive: ")


@pytest.fixture
def archive_sh(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> ArchiveSh:
    return ArchiveSh(tmp_path, capfd)


@pytest.fixture
def colours(archive_sh: ArchiveSh) -> Path:
    """A copy of the example with a custom task; returns the model's folder."""
    shutil.copytree(ROOT / "examples" / "custom-task", archive_sh.folder, dirs_exist_ok=True)
    return archive_sh.folder / "colours"
