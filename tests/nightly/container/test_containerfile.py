"""The Containerfiles as a linter and a reader see them; test_image.py builds and runs the first."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.lock import blocks
from deploy.models import ROOT
from torchserve_client.version import VERSION

FILES = sorted((ROOT / "deploy" / "container").glob("*Containerfile"))


def hadolint(path: Path) -> subprocess.CompletedProcess[str]:
    words = [str(Path(sys.executable).with_name("hadolint")), "--failure-threshold", "style", str(path)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_containerfile_has_nothing_that_a_linter_finds(path: Path) -> None:
    linted = hadolint(path)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_linter_finds_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "Containerfile"
    wrong.write_text("FROM debian:latest\nRUN cd /tmp\n")
    linted = hadolint(wrong)
    assert linted.returncode == 1
    assert "DL3007" in linted.stdout


def test_image_has_the_version_of_the_project() -> None:
    text = (ROOT / "deploy" / "container" / "Containerfile").read_text()
    assert re.findall(r'image\.version="(.*)"', text) == [VERSION]
    assert set(re.findall(r"torchserve-batching:(\d\S+)", text)) == {VERSION}


def test_lock_of_the_image_is_a_part_of_the_environments() -> None:
    """Nothing else is served than what was tested: name, version and every hash."""
    server, everything = (
        blocks((ROOT / name).read_text()) for name in ("requirements-server.lock", "requirements.lock")
    )
    assert 60 < len(server) < len(everything)
    different = [pin for pin, lines in server.items() if set(_hashes(lines)) != set(_hashes(everything.get(pin, [])))]
    assert different == []
    tested_with = {pin.partition("==")[0] for pin in everything.keys() - server.keys()}
    assert {"pytest", "mypy", "ruff", "playwright", "kubernetes-validate"} <= tested_with


def _hashes(lines: list[str]) -> list[str]:
    return re.findall(r"sha256:\w+", "\n".join(lines))


def test_what_decides_on_the_environment_is_copied_before_the_code() -> None:
    """A change of the code leaves the layer with the environment as it is."""
    text = (ROOT / "deploy" / "container" / "Containerfile").read_text()
    environment, _, rest = text.partition("AS code\n")
    assert "COPY . ." not in environment
    image = rest.partition("FROM ${BASE}\n")[2]
    assert image.index("COPY --from=environment") < image.index("COPY --from=code")
