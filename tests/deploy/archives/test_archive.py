"""archive.sh with any model: the reasons for a build, the archive's contents, and the state after a failure."""

import json
import os
import re
import shutil
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from deploy.archives.__main__ import main
from deploy.archives.archive import SUFFIXES, Recipe
from deploy.models import ROOT, model
from handlers.archive_files import check
from tests.deploy.archives.conftest import ArchiveSh
from tests.tensor_files import scaled_onnx

pytestmark = pytest.mark.builds

EXAMPLE = ROOT / "examples" / "custom-task"


@pytest.fixture
def colours(archive_sh: ArchiveSh) -> Path:
    """A copy of the example with a custom task; returns the model's folder."""
    shutil.copytree(EXAMPLE, archive_sh.folder, dirs_exist_ok=True)
    return archive_sh.folder / "colours"


@pytest.mark.parametrize("archive_format", ["zip-store", "no-archive"])
def test_archive_of_every_format_holds_what_its_build_json_lists_and_is_found_again(
    archive_format: str, archive_sh: ArchiveSh, colours: Path
) -> None:
    (archive_sh.folder / "trained.bin").write_bytes(bytes(range(256)))
    # Not packed by torch-model-archiver, so not listed either.
    (colours / "palettes" / ".cache").mkdir(parents=True)
    (colours / "palettes" / ".cache" / "a.csv").write_text("")
    (colours / "palettes" / ".names").write_text("")
    task = archive_sh.folder / "colour_names.py"
    task.write_text(task.read_text().replace('("palette.csv",)', '("palette.csv", "palettes")'))
    arguments = ["colours", "--weights", str(archive_sh.folder / "trained.bin"), "--archive-format", archive_format]
    (line,) = archive_sh(*arguments)
    path = archive_sh.store / f"colours{SUFFIXES[archive_format]}"
    size = r", \d+ MB" if SUFFIXES[archive_format] else ""
    register = "; torchserve-batching register colours --wait" if path.suffix == ".mar" else ""
    assert re.fullmatch(rf"{os.path.relpath(path)}: built, version 1\.0, engine auto{size}, \d+ s{register}", line)
    # In place of the one that is there.
    assert ": built" in archive_sh(*arguments, "--force")[0]
    assert archive_sh(*arguments) == [f"{os.path.relpath(path)}: up to date"]
    versioned = ["colours-1.0.mar"] if path.suffix == ".mar" else []
    assert sorted(each.name for each in archive_sh.store.iterdir()) == [*versioned, path.name]
    folder = path
    if archive_format == "zip-store":
        with zipfile.ZipFile(path) as mar:
            assert all(entry.compress_type == zipfile.ZIP_STORED for entry in mar.infolist())
        folder = archive_sh.folder / "unpacked"
        shutil.unpack_archive(path, folder, "zip")
    build = json.loads((folder / "build.json").read_text())
    assert check(folder) == build["fingerprint"]
    assert build["is_folder"] is (archive_format == "no-archive")
    files = {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}
    assert files - build["files"].keys() == {"build.json", "MAR-INF/MANIFEST.json"}
    assert {"checkpoint/trained.bin", "palette.csv", "palettes/.names", "colour_names.py", "handlers/base.py"} <= files
    assert not [name for name in files if "pycache" in name or name.startswith(("client", "load", "tests"))]
    assert json.loads((folder / "MAR-INF/MANIFEST.json").read_text())["model"] == {
        "modelName": "colours",
        "handler": "colour_names.py",
        "modelVersion": "1.0",
        "configFile": "model-config.yaml",
    }
    config = yaml.safe_load((folder / "model-config.yaml").read_text())
    assert (config["batchSize"], config["handler"]) == (32, {"max_batch_items": 32, "engine": "auto"})


def test_archive_is_left_alone_until_an_input_changes_or_it_is_damaged(archive_sh: ArchiveSh, colours: Path) -> None:
    arguments = ["colours", "--archive-format", "zip-store"]
    path = archive_sh.store / "colours.mar"

    def is_built(*more: str) -> bool:
        before = path.stat().st_mtime_ns if path.exists() else 0
        (line,) = archive_sh(*arguments, *more)
        is_new = path.stat().st_mtime_ns != before
        assert line.endswith(": up to date") is not is_new
        return is_new

    assert [is_built(), is_built(), is_built("--force"), is_built("--engine", "torch")] == [True, False, True, True]
    with (colours / "palette.csv").open("a") as palette:
        palette.write("none,1,2,3\n")
    assert [is_built(), is_built()] == [True, False]
    os.truncate(path, path.stat().st_size // 2)
    assert [is_built(), is_built()] == [True, False]


def test_builds_side_by_side_all_succeed_and_nobody_sees_half_an_archive(tmp_path: Path) -> None:
    recipe = Recipe(model("language-id"), export_path=tmp_path)
    recipe.build()
    with ThreadPoolExecutor(3) as pool:
        builds = [pool.submit(recipe.build) for _ in range(3)]
        seen = set()
        while not all(build.done() for build in builds):
            with zipfile.ZipFile(recipe.path) as mar:
                seen.add(mar.testzip())
    assert [build.result().is_new for build in builds] == [True] * 3
    assert seen == {None}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["language-id-1.0.mar", "language-id.mar"]


def test_build_that_fails_leaves_the_old_archive(archive_sh: ArchiveSh, colours: Path) -> None:
    archive_sh("colours")
    before = check(archive_sh.store / "colours")
    (colours / "palette.csv").unlink()
    assert archive_sh.refused("colours") == "colours: staged_files: no palette.csv in colours/"
    assert check(archive_sh.store / "colours") == before is not None
    assert [path.name for path in archive_sh.store.iterdir()] == ["colours"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "archive.sh", *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_what_is_up_to_date_or_exported_before_is_answered_without_importing_torch(
    archive_sh: ArchiveSh, colours: Path
) -> None:
    scaled_onnx(archive_sh.folder / "m.onnx")
    with archive_sh.models.open("a") as models:
        models.write('scaled: {handler: tensors, version: "3", weights: m.onnx}\n')
    archive_sh("--all")
    shutil.rmtree(archive_sh.store / "scaled")
    # Python prints each module that it imports to stderr.
    finished = run(*archive_sh.arguments("--all"), PYTHONPROFILEIMPORTTIME="1")
    assert finished.returncode == 0, finished.stderr
    words = ["colours: up to date", "scaled: built, version 3", "scaled: OpenVINO in fp32 is within"]
    words += ["scaled: classic mode, batchSize 32"]
    for line, expected in zip(finished.stdout.splitlines(), words, strict=True):
        assert expected in line
    imported = {line.rpartition("|")[2].strip() for line in finished.stderr.splitlines()}
    assert "deploy.archives.archive" in imported
    assert not {"torch", "openvino", "onnx", "onnxruntime", "ts", "colour_names"} & imported


def test_archive_sh_prints_one_line_and_exits_1(archive_sh: ArchiveSh, colours: Path) -> None:
    finished = run(*archive_sh.arguments("colors"))
    words = "torchserve-batching archive: colors: not in models.yaml; known are colours\n"
    assert (finished.returncode, finished.stdout, finished.stderr) == (1, "", words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ": name models or use --all, and not both; see torchserve-batching archive --help\n"),
        (["--all", "--weights", "x.pt"], "--weights PATH belongs to one model: name only that model; see "),
        (["mobilenet-v2", "--calibrate", "x"], "--calibrate belongs to --precision int8"),
        (["--all", "--precision", "int8", "--calibrate", "x"], "belong to models of one kind"),
        (["mobilenet-v2", "--min-agreement", "nan"], "'nan' is not a number from 0 to 1"),
    ],
)
def test_unusable_command_line_exits_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ("- colours", "models.yaml: while parsing a block mapping"),
        ("colours: {task: [a", "models.yaml: while parsing a flow sequence"),
        ("colours: {task: tokenization, versoin: '1'}", "colours: versoin: unknown name (did you mean version?)"),
        ("colours: {task: tokenization}", "models.yaml: colours: version missing"),
        ("a: &a {b: 1}\ncolours: {<<: *a}", "models.yaml: a merge (<<): write its keys out"),
        ("colours: tokenization", "models.yaml: colours: expected a mapping of names to values"),
        ("colours: {task: tensors, version: '1'}", "colours: the list names no weights; use --weights PATH"),
        ("colours: {task: tensors, version: '1', weights: m.onnx}", "colours: no m.onnx in "),
        ("a/b: {task: tensors, version: '1'}", "models.yaml: 'a/b' is not a valid name: use 1 to 128 letters"),
        ("colours: {task: tensors, version: '1 0'}", "models.yaml: '1 0' is not a valid name"),
        ("colours: {task: image_clasification, version: '1'}", "image_clasification is not a task; built-in tasks"),
        ("colours: {task: colour_nams.py, version: '1'}", "no file colour_nams.py beside the list, which has none;"),
    ],
)
def test_wrong_list_is_one_line(listed: str, words: str, archive_sh: ArchiveSh) -> None:
    archive_sh.models.write_text(f"m: {{task: tensors, version: '1'}}\n{listed}\n")
    assert words in archive_sh.refused("colours")
