"""Archives that were damaged on the way, through TorchServe's own loader, and what each format holds."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.archive import Recipe
from deploy.archive_arguments import SUFFIXES
from deploy.models import ROOT, model
from handlers.archive_files import check
from handlers.errors import InvalidConfig

EXAMPLE = ROOT / "examples" / "custom-task"
# shutil's names of what each format is.
UNPACK = {"default": "zip", "zip-store": "zip", "tgz": "gztar"}

LOAD = """
import sys, traceback
from ts.model_loader import TsModelLoader
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
for folder in sys.argv[2:]:
    metrics = MetricsCacheYamlImpl(sys.argv[1])
    metrics.initialize_cache()
    try:
        TsModelLoader().load("m", folder, "colour_names.py", None, 4, metrics_cache=metrics)
        print("LOADED")
    except Exception as error:
        traceback.print_exc()
        print(f"REFUSED {type(error).__name__}: {error}")
"""


def unpacked(archive_format: str, folder: Path) -> Path:
    """An archive with weights as TorchServe unpacks it."""
    (folder / "trained.bin").write_bytes(bytes(range(256)) * 4096)
    entry, weights = model("colours", EXAMPLE / "models.yaml"), str(folder / "trained.bin")
    path = Recipe(entry, weights, archive_format=archive_format, export_path=folder).build().path
    if path.is_dir():
        return path
    shutil.unpack_archive(path, folder / "unpacked", UNPACK[archive_format])
    # TorchServe leaves out a tarball's first folder.
    return folder / "unpacked" / (entry.name if archive_format == "tgz" else "")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("zip-store", tmp_path_factory.mktemp("archive"))


def loaded(*folders: Path) -> tuple[list[str], str]:
    """What becomes of each archive in a process that sees the first and the installed packages, and what it prints."""
    finished = subprocess.run(
        [sys.executable, "-c", LOAD, str(ROOT / "deploy" / "metrics.yaml"), *map(str, folders)],
        cwd=folders[0],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folders[0])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    lines = [line for line in finished.stdout.splitlines() if line.startswith(("LOADED", "REFUSED"))]
    return lines, finished.stdout + finished.stderr


def truncate(folder: Path) -> None:
    os.truncate(folder / "checkpoint" / "trained.bin", 1_000_000)


def flip(folder: Path) -> None:
    path = folder / "checkpoint" / "trained.bin"
    content = bytearray(path.read_bytes())
    content[500_000] ^= 1
    path.write_bytes(content)


def lose(folder: Path) -> None:
    (folder / "handlers" / "text" / "languages.py").unlink()


def add(folder: Path) -> None:
    (folder / "colorsys.py").write_text("")


DAMAGES: dict[Callable[[Path], None], str] = {
    truncate: "changed: checkpoint/trained.bin;",
    flip: "changed: checkpoint/trained.bin;",
    lose: "missing: handlers/text/languages.py;",
    add: "not built: colorsys.py;",
}


def test_archives_damaged_on_the_way_are_refused_with_the_files_name_by_torchserves_own_loader(
    archive: Path, tmp_path: Path
) -> None:
    folders = [Path(shutil.copytree(archive, tmp_path / "sound"))]
    for damage in DAMAGES:
        folders.append(Path(shutil.copytree(archive, tmp_path / damage.__name__)))
        damage(folders[-1])
    # The first a second time: its worker has left compiled Python in it.
    lines, printed = loaded(*folders, folders[0])
    assert list((folders[0] / "handlers" / "__pycache__").glob("*.pyc"))
    assert len(lines) == 6, printed[-3000:]
    assert (lines[0], lines[-1]) == ("LOADED", "LOADED")
    for line, words in zip(lines[1:-1], DAMAGES.values(), strict=True):
        assert line.startswith(f"REFUSED InvalidConfig: this archive is not as it was built: {words}")
    assert printed.count("Cannot load m: InvalidConfig: this archive is not as it was built") == len(DAMAGES)


def test_archive_with_truncated_python_does_not_load_and_the_log_names_the_file(archive: Path, tmp_path: Path) -> None:
    """Python meets it before anything can be checked."""
    folder = Path(shutil.copytree(archive, tmp_path / "cut"))
    os.truncate(folder / "handlers" / "protocol" / "requests.py", 0)
    lines, printed = loaded(folder)
    assert len(lines) == 1, printed[-3000:]
    assert lines[0].startswith("REFUSED ")
    assert "handlers/protocol/requests.py" in printed


@pytest.mark.parametrize("archive_format", list(SUFFIXES))
def test_archive_of_every_format_holds_what_its_build_json_lists(archive_format: str, tmp_path: Path) -> None:
    folder = unpacked(archive_format, tmp_path)
    build = json.loads((folder / "build.json").read_text())
    assert check(folder) == build["fingerprint"]
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files - build["files"].keys() == {"build.json", "MAR-INF/MANIFEST.json"}
    assert {"checkpoint/trained.bin", "model-config.yaml", "colour_names.py", "handlers/base.py"} <= files
    assert build["is_folder"] is (archive_format == "no-archive")


def test_archive_built_as_a_folder_is_served_with_edited_settings_and_not_with_other_weights(tmp_path: Path) -> None:
    folder = unpacked("no-archive", tmp_path)
    with (folder / "model-config.yaml").open("a") as file:
        file.write("maxBatchDelay: 7\n")
    assert check(folder) is None
    truncate(folder)
    with pytest.raises(InvalidConfig, match=r"built: changed: checkpoint/trained\.bin;"):
        check(folder)


def test_archive_with_files_in_hidden_folders_lists_only_what_is_packed(tmp_path: Path) -> None:
    """torch-model-archiver leaves some folders out."""
    example = Path(shutil.copytree(EXAMPLE, tmp_path / "example"))
    for name in ("notes/.cache/a.csv", "notes/__MACOSX/b.csv", "notes/.c.csv"):
        (example / "colours" / name).parent.mkdir(parents=True, exist_ok=True)
        (example / "colours" / name).write_text("")
    task = example / "colour_names.py"
    task.write_text(task.read_text().replace('("palette.csv",)', '("palette.csv", "notes")'))
    entry = model("colours", example / "models.yaml")
    recipe = Recipe(entry, archive_format="no-archive", export_path=tmp_path / "store")
    folder = recipe.build().path
    assert check(folder) is not None
    assert [path.name for path in (folder / "notes").iterdir()] == [".c.csv"]
