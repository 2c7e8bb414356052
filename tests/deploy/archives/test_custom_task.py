"""A task in a file of the user's: what may be wrong with such a file, and what of it and of a checkpoint is packed."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest

from deploy.models import ROOT
from tests.deploy.archives.conftest import ArchiveSh

EXAMPLE = ROOT / "examples" / "custom-task"


@pytest.fixture
def colours(archive_sh: ArchiveSh) -> Path:
    """A copy of the example, to be spoilt; returns the model's folder."""
    shutil.copytree(EXAMPLE, archive_sh.folder, dirs_exist_ok=True)
    return archive_sh.folder / "colours"


def spoil(colours: Path, change: dict[str, str]) -> None:
    """Replace each text in whichever of the example's files has it."""
    files = [path for path in colours.parent.rglob("*") if path.suffix in (".py", ".yaml")]
    for old, new in change.items():
        holding = [path for path in files if old in path.read_text()]
        assert holding, f"the example has no {old!r}"
        for path in holding:
            path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"class ColourNames": "if True:\n    class Other: pass\nclass ColourNames"}, "2 classes (Other, ColourNames)"),
        ({"\nColour = ": "\ndef handle(data, context): ...\n\nColour = "}, "TorchServe would call `handle` at its"),
        ({"class ColourNames(BatchHandler[HandlerConfig, Colour]):": "class ColourNames:"}, "is not a BatchHandler"),
        ({'("palette.csv",)': 'tuple(["palette.csv"])'}, "staged_files must be a literal"),
        ({'("palette.csv",)': '("../models.yaml",)'}, "staged_files: ../models.yaml is outside the model's folder"),
        ({"def collate(": "def colate("}, "colour_names.py: ColourNames lacks collate"),
        ({"import csv": "import nobodys_package"}, "cannot be imported: ModuleNotFoundError: No module named"),
        ({"\nColour = ": '\nimport collections\nP = collections.namedtuple("P", "x")\nColour = '}, "2 classes (P, Col"),
        ({"max_batch_items: 32": "max_batch_itmes: 32"}, "colours: handler: max_batch_itmes: unknown name (did you"),
    ],
)
def test_task_that_cannot_be_served_is_one_line(
    change: dict[str, str], words: str, archive_sh: ArchiveSh, colours: Path
) -> None:
    spoil(colours, change)
    assert words in archive_sh.refused("colours")
    assert not (archive_sh.store / "colours").exists()


def test_module_beside_the_task_that_would_hide_an_installed_one_is_one_line(
    archive_sh: ArchiveSh, colours: Path
) -> None:
    (archive_sh.folder / "csv.py").write_text("")
    words = "colours: task: csv.py: it has the name of a module of the standard library, which it would hide"
    assert words in archive_sh.refused("colours")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("types.py", "types.py: it has the name of a module of the standard library"),
        ("colour-names.py", "colour-names.py: colour-names is not a valid name of a Python module"),
    ],
)
def test_task_named_like_another_module_is_one_line(
    name: str, words: str, archive_sh: ArchiveSh, colours: Path
) -> None:
    (archive_sh.folder / "colour_names.py").rename(archive_sh.folder / name)
    spoil(colours, {"task: colour_names.py": f"task: {name}"})
    assert words in archive_sh.refused("colours")


@pytest.mark.parametrize("name", ["handlers/base.py", "types.py", "email/message.py", "build.json"])
def test_file_that_would_hide_the_workers_own_is_not_staged(name: str, archive_sh: ArchiveSh, colours: Path) -> None:
    (colours / name).parent.mkdir(exist_ok=True)
    (colours / name).write_text("")
    spoil(colours, {'("palette.csv",)': f'("palette.csv", "{name}")'})
    assert f"colours: {name.partition('/')[0]} cannot be staged" in archive_sh.refused("colours")


TRUSTING = {
    "class ColourNames(": "from handlers.text.config import TextConfig\n\n\nclass ColourNames(",
    "config_class = HandlerConfig": "config_class = TextConfig",
}


@pytest.mark.builds
@pytest.mark.parametrize(("kind", "trusted"), [("hub", True), ("hub", False), ("folder", None)])
def test_code_of_a_checkpoint_is_packed_only_where_the_settings_trust_it(
    kind: str, trusted: bool | None, archive_sh: ArchiveSh, colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trusted is not None:
        spoil(colours, {**TRUSTING, "max_batch_items: 32": f"trust_remote_code: {json.dumps(trusted)}"})
    source = archive_sh.folder / "source"
    for name in ("config.json", "model.safetensors", "modeling_own.py", "deep/types.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        # A safetensors file without tensors has the length of its header, and the header.
        prefix = b"\2\0\0\0\0\0\0\0" if name.endswith(".safetensors") else b""
        (source / name).write_bytes(prefix + b"{}")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(source))
    archive_sh("colours", "--weights", "somebody/something" if kind == "hub" else str(source))
    staged = archive_sh.store / "colours" / "checkpoint"
    assert (staged / "config.json").is_file()
    code = {path.relative_to(staged).as_posix() for path in staged.rglob("*.py")}
    assert code == ({"modeling_own.py", "deep/types.py"} if trusted else set())
