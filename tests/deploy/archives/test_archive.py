"""archive.sh with any model: why and what it builds, for which mode, the state after a failure, and archives' names."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.archives.__main__ import main
from deploy.archives.archive import SUFFIXES, Recipe
from deploy.archives.mode import complete_mode, find_classic_cause
from deploy.archives.names import prune
from deploy.models import ROOT, model
from handlers.archive_files import check
from handlers.config import HandlerConfig, parse
from handlers.continuous import mode
from handlers.errors import InvalidConfig
from tests.deploy.archives.conftest import ArchiveSh
from tests.tables import table
from tests.tensor_files import files, scaled_onnx
from torchserve_client.archives import describe, find_version

pytestmark = pytest.mark.builds

MAR = ("colours", "--archive-format", "zip-store")


@pytest.mark.parametrize("archive_format", ["zip-store", "no-archive"])
def test_each_format_holds_what_its_build_json_lists(archive_format: str, archive_sh: ArchiveSh, colours: Path) -> None:
    (archive_sh.folder / "trained.bin").write_bytes(bytes(range(256)))
    # Files of a hidden folder are not packed by torch-model-archiver, so not listed either.
    (colours / "palettes" / ".cache").mkdir(parents=True)
    for name in (".cache/a.csv", ".names"):
        (colours / "palettes" / name).write_text("")
    task = archive_sh.folder / "colour_names.py"
    task.write_text(task.read_text().replace('("palette.csv",)', '("palette.csv", "palettes")'))
    arguments = ["colours", "--weights", str(archive_sh.folder / "trained.bin"), "--archive-format", archive_format]
    (line,) = archive_sh(*arguments)
    path = archive_sh.store / f"colours{SUFFIXES[archive_format]}"
    size = r", \d+ MB" if SUFFIXES[archive_format] else ""
    register = "; torchserve-batching register colours --wait" if path.suffix == ".mar" else ""
    assert re.fullmatch(rf"{os.path.relpath(path)}: built, version 1\.0, engine auto{size}, \d+ s{register}", line)
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
    build, found = json.loads((folder / "build.json").read_text()), files(folder)
    assert (check(folder), build["is_folder"]) == (build["fingerprint"], archive_format == "no-archive")
    assert found - build["files"].keys() == {"build.json", "MAR-INF/MANIFEST.json"}
    assert {"checkpoint/trained.bin", "palette.csv", "palettes/.names", "colour_names.py", "handlers/base.py"} <= found
    assert not [name for name in found if "pycache" in name or name.startswith(("client", "load", "tests"))]
    assert json.loads((folder / "MAR-INF/MANIFEST.json").read_text())["model"] == {
        "modelName": "colours", "handler": "colour_names.py", "modelVersion": "1.0", "configFile": "model-config.yaml",
    }  # fmt: skip
    config = yaml.safe_load((folder / "model-config.yaml").read_text())
    assert (config["batchSize"], config["handler"]) == (32, {"max_batch_items": 32, "engine": "auto"})


def test_compiled_python_beside_an_input_is_no_input_and_may_vanish(archive_sh: ArchiveSh, colours: Path) -> None:
    task = archive_sh.folder / "colour_names.py"
    task.write_text(task.read_text().replace('("palette.csv",)', '("palette.csv", "palettes")'))
    folders = (archive_sh.folder / "weights", colours / "palettes")
    for folder in folders:
        folder.mkdir()
        (folder / "trained.bin").write_bytes(b"1")
    arguments = ["colours", "--weights", str(folders[0]), "--archive-format", "no-archive"]
    archive_sh(*arguments)
    for folder in folders:
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "own.cpython-311.pyc").write_bytes(b"1")
        (folder / "__pycache__" / "own.cpython-311.pyc.1").symlink_to("gone")
    assert archive_sh(*arguments)[0].endswith(": up to date")
    assert ": built" in archive_sh(*arguments, "--force")[0]


def test_archive_is_left_alone_until_an_input_changes_or_it_is_damaged(archive_sh: ArchiveSh, colours: Path) -> None:
    arguments, path = ["colours", "--archive-format", "zip-store"], archive_sh.store / "colours.mar"

    def is_built(*more: str) -> bool:
        before = path.stat().st_mtime_ns if path.exists() else 0
        line, *others = archive_sh(*arguments, *more)
        is_new = path.stat().st_mtime_ns != before
        assert line.endswith(": up to date") is not is_new
        # One of other contents replaces none in silence.
        is_other = bool(before and is_new and more != ("--force",))
        assert [": replaces another archive of version 1.0, " in other for other in others] == [True] * is_other
        return is_new

    assert [is_built(), is_built(), is_built("--force"), is_built("--engine", "torch")] == [True, False, True, True]
    with (colours / "palette.csv").open("a") as palette:
        palette.write("none,1,2,3\n")
    assert [is_built(), is_built()] == [True, False]
    os.truncate(path, path.stat().st_size // 2)
    assert [is_built(), is_built()] == [True, False]
    # A build that fails leaves the old one.
    before = path.read_bytes()
    (colours / "palette.csv").unlink()
    assert archive_sh.rejected(*arguments) == "colours: staged_files: no palette.csv in colours/"
    assert path.read_bytes() == before


def test_builds_side_by_side_all_succeed_and_nobody_sees_half_an_archive(tmp_path: Path) -> None:
    recipe = Recipe(model("language-id"), export_path=tmp_path)
    recipe.build()
    with ThreadPoolExecutor(3) as pool:
        builds = [pool.submit(recipe.build) for _ in range(3)]
        seen = set()
        while not all(build.done() for build in builds):
            with zipfile.ZipFile(recipe.path) as mar:
                seen.add(mar.testzip())
    assert ([build.result().is_new for build in builds], seen) == ([True] * 3, {None})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["language-id-1.0.mar", "language-id.mar"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command, variables = [str(ROOT / "archive.sh"), *arguments], {**os.environ, **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=120)


def test_what_is_up_to_date_or_exported_needs_no_import_of_torch(archive_sh: ArchiveSh, colours: Path) -> None:
    scaled_onnx(archive_sh.folder / "m.onnx")
    with archive_sh.models.open("a") as models:
        models.write('scaled: {task: tensors, version: "3", weights: m.onnx}\n')
    archive_sh("--all")
    shutil.rmtree(archive_sh.store / "scaled")
    # Python prints each module that it imports to stderr.
    finished = run(*archive_sh.arguments("--all"), PYTHONPROFILEIMPORTTIME="1")
    assert finished.returncode == 0, finished.stderr
    of_scaled = ("built, version 3", "OpenVINO in fp32 is within", "classic mode, batchSize 32")
    words = ["colours: up to date", *(f"scaled: {each}" for each in of_scaled)]
    assert all(each in line for line, each in zip(finished.stdout.splitlines(), words, strict=True)), finished.stdout
    imported = {line.rpartition("|")[2].strip() for line in finished.stderr.splitlines()}
    assert "deploy.archives.archive" in imported
    assert not {"torch", "openvino", "onnx", "onnxruntime", "ts", "colour_names"} & imported
    finished = run(*archive_sh.arguments("colors"))
    rejection = "torchserve-batching archive: colors: not in models.yaml; known are colours, scaled\n"
    assert (finished.returncode, finished.stdout, finished.stderr) == (1, "", rejection)


@table(
    ([], ": name models or use --all, and not both; see torchserve-batching archive --help\n"),
    (["--all", "--weights", "x.pt"], "--weights PATH belongs to one model: name only that model; see "),
    (["mobilenet-v2", "--calibrate", "x"], "--calibrate belongs to --precision int8"),
    (["--all", "--precision", "int8", "--calibrate", "x"], "belong to models of one kind"),
    (["mobilenet-v2", "--min-agreement", "nan"], "'nan' is not a number from 0 to 1"),
)
def test_unusable_command_line_exits_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert words in capsys.readouterr().err


@table(
    ("- colours", "models.yaml: while parsing a block mapping"),
    ("colours: {task: [a", "models.yaml: while parsing a flow sequence"),
    ("colours: {task: tokenization, versoin: '1'}", "colours: versoin: unknown name (did you mean version?)"),
    ("colours: {handler: tokenization, version: '1'}", "; handler was the name of task)"),
    ("colours: {task: tokenization, version: '1', requirements: {a: 1}}", "colours: requirements must be a list of"),
    ("colours: {task: tokenization}", "models.yaml: colours: version missing"),
    ("a: &a {b: 1}\ncolours: {<<: *a}", "models.yaml: a merge (<<): write its keys out"),
    ("colours: tokenization", "models.yaml: colours: expected a mapping of names to values"),
    ("colours: {task: tensors, version: '1'}", "colours: the list names no weights; use --weights PATH"),
    ("colours: {task: tensors, version: '1', weights: m.onnx}", "colours: no m.onnx in "),
    ("a/b: {task: tensors, version: '1'}", "models.yaml: 'a/b' is not a valid name: use 1 to 128 letters"),
    ("colours: {task: tensors, version: '1 0'}", "models.yaml: '1 0' is not a valid name"),
    ("colours: {task: image_clasification, version: '1'}", "image_clasification is not a task; built-in tasks"),
    ("colours: {task: colour_nams.py, version: '1'}", "no file colour_nams.py beside the list, which has none;"),
)
def test_wrong_list_is_one_line(listed: str, words: str, archive_sh: ArchiveSh) -> None:
    archive_sh.models.write_text(f"m: {{task: tensors, version: '1'}}\n{listed}\n")
    assert words in archive_sh.rejected("colours")


def test_name_leads_to_the_newest_and_the_way_back_needs_no_build(archive_sh: ArchiveSh, colours: Path) -> None:
    listed = archive_sh.models.read_text()
    archive_sh(*MAR)
    archive_sh.models.write_text(listed.replace('version: "1.0"', 'version: "2.0"'))
    archive_sh(*MAR)
    newest = archive_sh.store / "colours.mar"
    stored = sorted(path.name for path in archive_sh.store.glob("*.mar"))
    assert stored == ["colours-1.0.mar", "colours-2.0.mar", "colours.mar"]
    assert (describe(newest).version, describe(find_version(newest, "1.0")).version) == ("2.0", "1.0")
    archive_sh.models.write_text(listed)
    assert (archive_sh(*MAR), describe(newest).version) == ([f"{os.path.relpath(newest)}: up to date"], "1.0")
    # A served version, and the one that NAME.mar leads to, stay.
    os.utime(archive_sh.store / "colours-1.0.mar")
    snapshot = archive_sh.folder / ".nodes" / "node-1" / "logs" / "config" / "1.cfg"
    snapshot.parent.mkdir(parents=True)
    snapshot.write_text(r'model_snapshot={"models"\: {"colours"\: {"2.0"\: {"marName"\: "colours.mar"}}}}')
    assert prune(newest, 1, archive_sh.folder) == []
    snapshot.unlink()
    assert [path.name for path in prune(newest, 1, archive_sh.folder)] == ["colours-2.0.mar"]

    # An archive of another model is not overwritten.
    archive_sh.models.write_text(archive_sh.models.read_text().replace("colours:", "colours-1.0:"))
    shutil.copytree(archive_sh.folder / "colours", archive_sh.folder / "colours-1.0")
    words = "colours-1.0: colours-1.0.mar is an archive of colours: rename one of the models"
    assert archive_sh.rejected("colours-1.0", *MAR[1:]) == words


def test_check_lists_other_handlers(archive_sh: ArchiveSh, colours: Path, capfd: pytest.CaptureFixture[str]) -> None:
    archive_sh(*MAR)
    check = ["--check", "--export-path", str(archive_sh.store)]
    capfd.readouterr()
    assert (main(check), capfd.readouterr().out) == (0, "")
    path = archive_sh.store / "colours-1.0.mar"
    with zipfile.ZipFile(path) as whole:
        content = {name: whole.read(name) for name in whole.namelist()}
    build = json.loads(content["build.json"])
    # Of the first format, which has neither.
    del build["sum"], build["format"], build["made_with"]
    build["files"]["handlers/base.py"] = "0" * 64
    content["build.json"] = json.dumps(build).encode()
    with zipfile.ZipFile(path, "w") as changed:
        for name, data in content.items():
            changed.writestr(name, data)
    assert main(check) == 1
    (line,) = capfd.readouterr().out.splitlines()
    assert "built with an older version, installed is" in line and "1 modules differ: handlers/base.py" in line


def test_entries_are_all_checked_before_the_first_is_built(archive_sh: ArchiveSh, colours: Path) -> None:
    with archive_sh.models.open("a") as models:
        models.write("wrong: {task: colour_names.py, version: '1'}\n")
    (archive_sh.folder / "wrong").mkdir()
    (archive_sh.folder / "wrong" / "model-config.yaml").write_text("handler: {max_batch_itmes: 3}\n")
    shutil.copy(colours / "palette.csv", archive_sh.folder / "wrong")
    assert "wrong: handler: max_batch_itmes: unknown name" in archive_sh.rejected("--all")
    assert not list(archive_sh.store.glob("colours*"))


WINDOW = {"batchSize": 64, "maxBatchDelay": 1}
WORKER = {"minWorkers": 1, "maxWorkers": 1}
OTHERS = "by default; model-config.yaml sets others"
ADAPTIVE = {"handler": {"scheduling": {"mode": "adaptive"}}}


@table(
    ({}, {"continuousBatching": True, **WINDOW, **WORKER}, {"batchSize": 32, "maxBatchDelay": 1}),
    (ADAPTIVE, {"continuousBatching": True, **WINDOW, **WORKER}, None),
    ({"batchSize": 8, "maxBatchDelay": 50}, {"continuousBatching": True, **WORKER}, {}),
    ({"maxWorkers": 1}, {"continuousBatching": True, **WINDOW, "minWorkers": 1}, {"batchSize": 32, "maxBatchDelay": 1}),
    ({"batchSize": 1, "maxWorkers": 4}, None, {"maxBatchDelay": 1}),
    ({"maxBatchDelay": 50}, None, {"batchSize": 32}),
    ({"asyncCommunication": True}, None, {}),
)
def test_config_is_adaptive_unless_it_is_said_and_keeps_what_it_says(config: Any, more: Any, classic: Any) -> None:
    if more is not None:
        whole = complete_mode("m", config)
        assert whole == {**config, **more}
        scheduling = {"scheduling": (whole.get("handler") or {}).get("scheduling", {})}
        assert mode.resolve_mode(parse(HandlerConfig, scheduling), whole).scheduling.mode == "adaptive"
        assert find_classic_cause(config) is None
    if classic is not None:
        assert complete_mode("m", config, "classic") == {**config, **classic}


@table(
    *((text, f"own: classic mode, batchSize 32, maxBatchDelay 1 {OTHERS}") for text in (None, "")),
    ("batchSize: 4\n", f"own: classic mode, maxBatchDelay 1 {OTHERS}"),
    ("batch_size: 4\n", "own: model-config.yaml: batch_size: unknown name (did you mean batchSize?)"),
    ("handler: tensors\n", "own: model-config.yaml: handler: expected a mapping of settings, received str"),
    ("handler: [threads]\n", "own: model-config.yaml: handler: expected a mapping of settings, received list"),
    ("continuousBatching: true\n", "own: model-config.yaml: continuousBatching: the build writes it; remove it"),
    ("- 4\n", "own: model-config.yaml: expected a mapping of names to values"),
    ("a: [\n", "own: model-config.yaml: while parsing"),
    ("batchSize: 4\n", "own: model-config.yml is not read: rename it to model-config.yaml"),
)
def test_model_config_may_be_missing_and_is_checked(text: str | None, outcome: str, archive_sh: ArchiveSh) -> None:
    folder = archive_sh.write_list("own", "tensors", "infer.py")
    (folder / "infer.py").write_text("def infer(x):\n    return {'y': x}\n")
    if text is not None:
        (folder / f"model-config.{'yml' if '.yml' in outcome else 'yaml'}").write_text(text)
    if "by default" in outcome:
        assert archive_sh("own")[-1].endswith(outcome)
    else:
        assert archive_sh.rejected("own").startswith(outcome)


def test_build_says_why_an_archive_is_classic_and_rejects_an_adaptive_one_that_cannot_be(archive_sh: ArchiveSh) -> None:
    folder = archive_sh.write_list("own", "tensors", "infer.py")
    (folder / "infer.py").write_text("def infer(x):\n    return {'y': x}\n")

    def write(**config: Any) -> None:
        (folder / "model-config.yaml").write_text(yaml.safe_dump(config))

    write(**ADAPTIVE)
    assert not [line for line in archive_sh("own") if "classic" in line]
    config = archive_sh.config("own")
    assert (config["continuousBatching"], config["maxWorkers"], config["batchSize"]) == (True, 1, 64)
    write(maxWorkers=4, batchSize=8)
    (said,) = [line for line in archive_sh("own") if "since" in line]
    assert said.endswith("own: classic mode, since model-config.yaml has maxWorkers: 4")
    config = archive_sh.config("own")
    assert "continuousBatching" not in config and config["maxWorkers"] == 4
    write(maxWorkers=4, **ADAPTIVE)
    assert "own: handler: scheduling: mode: adaptive: maxWorkers must be 1" in archive_sh.rejected("own")
    with pytest.raises(InvalidConfig, match=r"^m: model-config.yaml: continuousBatching: the build writes it"):
        complete_mode("m", {"continuousBatching": False, **ADAPTIVE})


# Builds an archive, killed at several lines in turn, and builds it again; prints the number of lines.
KILLED = """
import os, signal, sys
from pathlib import Path
from zipfile import ZipFile
from deploy.archives.__main__ import main
from tests.killing import count_lines, run_in_child

folder = Path(sys.argv[1])

def run(store):
    os.environ["CACHE_DIR"] = str(store / "cache")
    return main(["double", "--models", str(folder / "models.yaml"), "--export-path", str(store)])

def traced(store, last):
    end = count_lines(lambda code: "/deploy/" in code.co_filename, last)
    code = run(store)
    (folder / "lines").write_text(str(end()))
    return code

def files(store):
    return sorted(str(each.relative_to(store)) for each in store.rglob("*"))

assert run(folder / "first") == 0  # imports what the others need
assert run_in_child(lambda: traced(folder / "whole", None)) == 0
lines = int((folder / "lines").read_text())
wanted = files(folder / "whole")
for last in (*(lines * number // 6 for number in range(6)), *range(lines - 100, lines, 15)):
    store = folder / str(last)
    assert run_in_child(lambda: traced(store, last)) == -signal.SIGKILL, last
    assert run_in_child(lambda: run(store)) == 0, last
    with ZipFile(store / "double.mar") as archive:
        assert archive.testzip() is None
    assert files(store) == wanted, (last, set(files(store)) ^ set(wanted))
print(lines)
"""


def test_build_that_is_killed_at_any_line_is_whole_when_it_is_repeated(tmp_path: Path) -> None:
    (own := tmp_path / "double").mkdir()
    (own / "infer.py").write_text("def infer(x):\n    return {'y': x * 2}\n")
    (own / "sample.json").write_text('{"x": 1}')
    entry = {"task": "tensors", "version": "1.0", "weights": {"path": str(own / "infer.py")}}
    (tmp_path / "models.yaml").write_text(yaml.safe_dump({"double": entry}))
    tensors = {kind: {name: {"datatype": "INT64", "shape": [-1]}} for kind, name in (("inputs", "x"), ("outputs", "y"))}
    (own / "model-config.yaml").write_text(yaml.safe_dump({"handler": tensors}))
    words = [sys.executable, "-W", "ignore", "-c", KILLED, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0 and int(done.stdout.split()[-1]) > 500, done.stderr[-2000:]
