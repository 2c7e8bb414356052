"""A task in a file of the user's: examples/custom-task, and everything that may be wrong with such a file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest

from deploy.archive import main
from deploy.models import ROOT

EXAMPLE = ROOT / "examples" / "custom-task"

LOAD_AND_SERVE = """
import json, os, sys
from ts.model_loader import TsModelLoader
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
metrics = MetricsCacheYamlImpl(sys.argv[1])
metrics.initialize_cache()
service = TsModelLoader().load("colours", os.getcwd(), "colour_names.py", None, 8, metrics_cache=metrics)
service.set_cl_socket(None)
rows = [(kind, open(body, "rb").read()) if kind.endswith("json") else (kind, body.encode()) for kind, body in
        json.loads(sys.argv[2])]
batch = [
    {"requestId": f"r{i}".encode(), "headers": [],
     "parameters": [{"name": "body", "contentType": kind, "value": value}]}
    for i, (kind, value) in enumerate(rows)
]
sys.stdout.buffer.write(b"\\nREPLY" + bytes(service.predict(batch)))
"""


def built(folder: Path, *arguments: str, store: Path) -> int:
    return main(
        [
            *("colours", "--models", str(folder / "models.yaml")),
            *("--export-path", str(store), "--archive-format", "no-archive", *arguments),
        ]
    )


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A copy of the example, to be spoilt; its task's file imports torch only when it is run."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "custom-task"))


def test_custom_task_of_one_file_serves_a_batch_through_torchserves_own_loader(tmp_path: Path) -> None:
    """In a process that sees the archive and the installed packages, and nothing of this repository."""
    assert built(EXAMPLE, store=tmp_path) == 0
    archive = tmp_path / "colours"
    assert {path.name for path in archive.iterdir()} == {
        *("MAR-INF", "build.json", "colour_names.py", "handlers", "model-config.yaml", "palette.csv")
    }
    rows = [
        ("text/plain", "#00007a"),
        ("text/plain", "blue"),
        ("application/json", str(EXAMPLE / "colours" / "colours.json")),
        ("text/plain", "#fefefe"),
    ]
    finished = subprocess.run(
        [sys.executable, "-c", LOAD_AND_SERVE, str(ROOT / "deploy" / "metrics.yaml"), json.dumps(rows)],
        cwd=archive,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(archive)},
        capture_output=True,
        check=False,
        timeout=120,
    )
    reply = finished.stdout.rpartition(b"REPLY")[2]
    bodies = (
        b'["navy"]',
        b"colour: must be #rrggbb.",
        b'{"predictions":[["chocolate","brown"],["navy","indigo"]]}',
        b'["white"]',
    )
    places = [reply.find(body) for body in bodies]
    assert places == sorted(places), reply
    assert places[0] >= 0, finished.stdout[-2000:] + finished.stderr[-2000:]


def test_custom_task_found_up_to_date_imports_neither_torch_nor_the_task(tmp_path: Path) -> None:
    assert built(EXAMPLE, store=tmp_path) == 0
    script = (
        "import sys; from deploy.archive import main; code = main(sys.argv[1:]); "
        "print(sorted({'torch', 'ts', 'colour_names'} & set(sys.modules))); sys.exit(code)"
    )
    finished = subprocess.run(
        [
            *(sys.executable, "-c", script, "colours", "--models", str(EXAMPLE / "models.yaml")),
            *("--export-path", str(tmp_path), "--archive-format", "no-archive"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[0].endswith("colours: up to date")
    assert finished.stdout.splitlines()[1] == "[]"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # The name of the handler.
        (
            {"handler: colour_names.py": "handler: colour_nams.py"},
            "no file colour_nams.py beside the list; there is colour_names.py; built in are im",
        ),
        (
            {"handler: colour_names.py": "handler: image_clasification"},
            "image_clasification is no task; built in are im",
        ),
        ({"handler: colour_names.py": "handler: 7"}, "handler and version must be text"),
        ({"handler: colour_names.py": "handler: [a"}, "models.yaml: while parsing a flow sequence"),
        # What the file holds at its top level.
        ({"class ColourNames": "class Other:\n    pass\n\n\nclass ColourNames"}, "2 classes (Other, ColourNames)"),
        ({"class ColourNames": "if True:\n    class Other: pass\nclass ColourNames"}, "2 classes (Other, ColourNames)"),
        ({"class ColourNames": "def make():\n  class ColourNames"}, "holds no class; a task's file holds exactly one"),
        ({"\nColour = ": "\nhandle = "}, "`handle` at its top level would be served instead"),
        ({"\nColour = ": "\ndef handle(data, context): ...\n\nColour = "}, "`handle` at its top level would be served"),
        ({"import re\n": "import re as handle\n"}, "`handle` at its top level would be served instead of the class"),
        ({"class ColourNames(BatchHandler[HandlerConfig, Colour]):": "class ColourNames:"}, "is no BatchHandler"),
        ({"def load(": "def load(("}, "colour_names.py, line 33: Function parameters cannot be"),
        # What it wants staged.
        ({'("palette.csv",)': 'tuple(["palette.csv"])'}, "staged_files must be written out"),
        ({'("palette.csv",)': '("../models.yaml",)'}, "staged_files: ../models.yaml leaves the folder"),
    ],
)
def test_custom_task_that_breaks_a_rule_is_one_line_without_running_it(
    change: dict[str, str], words: str, task: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil(task, change)
    assert_refused(task, words, capfd)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"(BatchHandler[HandlerConfig, Colour])": "(dict[str, Colour])"},
            "colour_names.py: ColourNames is no BatchHan",
        ),
        ({"def collate(": "def colate("}, "colour_names.py: ColourNames lacks collate"),
        ({'    inputs = frozenset({"colour"})\n': ""}, "colour_names.py: ColourNames lacks inputs"),
        (
            {"import csv": "import nobodys_package"},
            "cannot be imported: ModuleNotFoundError: No module named 'nobodys_",
        ),
        ({"\nColour = ": '\nimport collections\nP = collections.namedtuple("P", "x")\nColour = '}, "2 classes (Colou"),
        ({'("palette.csv",)': '("palette.tsv",)'}, "colours: staged_files: no palette.tsv in colours/"),
        ({'("palette.csv",)': '("../colours/palette.csv",)'}, "leaves the folder of the model"),
        ({"max_items: 32": "max_itmes: 32"}, "handler: max_itmes: Unexpected keyword argument"),
    ],
)
def test_custom_task_that_cannot_be_served_is_one_line_when_built(
    change: dict[str, str], words: str, task: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil(task, change)
    assert_refused(task, words, capfd)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("types.py", "types.py: it is named like a module of the standard library"),
        ("handlers.py", "handlers.py: it is named like a package of this repository"),
        ("torch.py", "torch.py: it is named like an installed package"),
        ("colour-names.py", "colour-names.py: colour-names is no name of a Python module"),
    ],
)
def test_custom_task_named_like_another_module_is_one_line(
    name: str, words: str, task: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (task / "colour_names.py").rename(task / name)
    spoil(task, {"handler: colour_names.py": f"handler: {name}"})
    assert_refused(task, words, capfd)


def test_custom_task_unknown_handler_through_archive_sh_is_one_line_and_exit_1(task: Path) -> None:
    spoil(task, {"handler: colour_names.py": "handler: nobodys_task"})
    finished = subprocess.run(
        [str(ROOT / "archive.sh"), "colours", "--models", str(task / "models.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert finished.returncode == 1
    (line,) = finished.stderr.splitlines()
    assert line.startswith("archive.sh: colours: handler: nobodys_task is no task; built in are image_classification, ")


def test_custom_task_wrong_class_through_archive_sh_is_one_line_and_exit_1(task: Path) -> None:
    """In a process of its own, where importing TorchServe's base class would warn on stderr."""
    spoil(task, {"(BatchHandler[HandlerConfig, Colour])": "(dict[str, Colour])"})
    finished = subprocess.run(
        [
            *(str(ROOT / "archive.sh"), "colours", "--models", str(task / "models.yaml")),
            *("--export-path", str(task / "store")),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert finished.returncode == 1
    assert finished.stderr == "archive.sh: colour_names.py: ColourNames is no BatchHandler\n"


def test_custom_task_weights_of_the_command_line_lie_in_the_folder_of_checkpoints(task: Path, tmp_path: Path) -> None:
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "tree.bin").write_bytes(b"123")
    for weights, name in ((tmp_path / "trained" / "tree.bin", "file"), (tmp_path / "trained", "folder")):
        assert built(task, "--weights", str(weights), store=tmp_path / name) == 0
        assert (tmp_path / name / "colours" / "checkpoint" / "tree.bin").read_bytes() == b"123"


TRUSTING = {
    "class ColourNames(": "from handlers.text.config import TextConfig\n\n\nclass ColourNames(",
    "config_class = HandlerConfig": "config_class = TextConfig",
}


@pytest.mark.parametrize("kind", ["hub", "folder"])
@pytest.mark.parametrize("trusted", [None, False, True])
def test_custom_task_takes_the_code_of_a_checkpoint_only_where_its_settings_trust_it(
    kind: str, trusted: bool | None, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trusted is not None:
        spoil(task, {**TRUSTING, "max_items: 32": f"trust_remote_code: {json.dumps(trusted)}"})
    source = tmp_path / "source"
    for name in ("config.json", "model.safetensors", "modeling_own.py", "deep/types.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("{}")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(source))
    weights = "somebody/something" if kind == "hub" else str(source)
    assert built(task, "--weights", weights, store=tmp_path / "store") == 0
    staged = tmp_path / "store" / "colours" / "checkpoint"
    assert (staged / "config.json").is_file()
    code = {path.relative_to(staged).as_posix() for path in staged.rglob("*.py")}
    assert code == ({"modeling_own.py", "deep/types.py"} if trusted else set())


def test_custom_task_random_weights_are_refused(task: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert built(task, "--weights", "random", store=tmp_path / "store") == 1
    assert "no random weights for colour_names.py; give --weights PATH" in capfd.readouterr().err


def test_custom_task_staged_folder_and_pattern_keep_their_paths(task: Path, tmp_path: Path) -> None:
    (task / "colours" / "tables" / "deep").mkdir(parents=True)
    for name in ("tables/a.txt", "tables/deep/b.txt", "c.npy", "README.md"):
        (task / "colours" / name).write_text(name)
    spoil(task, {'("palette.csv",)': '("palette.csv", "tables", "*.npy")'})
    assert built(task, store=tmp_path / "store") == 0
    archive = tmp_path / "store" / "colours"
    staged = {path.relative_to(archive).as_posix() for path in archive.rglob("*") if path.is_file()}
    assert {"palette.csv", "tables/a.txt", "tables/deep/b.txt", "c.npy"} <= staged
    assert "README.md" not in staged


@pytest.mark.parametrize("name", ["handlers/base.py", "types.py", "json/x.txt", "build.json"])
def test_custom_task_staging_what_the_worker_has_itself_is_refused(
    name: str, task: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (task / "colours" / name).parent.mkdir(exist_ok=True)
    (task / "colours" / name).write_text("")
    spoil(task, {'("palette.csv",)': f'("palette.csv", "{name}")'})
    assert_refused(task, f"colours: {name.partition('/')[0]} cannot be staged", capfd)


def spoil(task: Path, change: dict[str, str]) -> None:
    """Replace each text in whichever of the example's files has it."""
    files = [path for path in task.rglob("*") if path.suffix in (".py", ".yaml")]
    for old, new in change.items():
        holding = [path for path in files if old in path.read_text()]
        assert holding, f"the example has no {old!r}"
        for path in holding:
            path.write_text(path.read_text().replace(old, new, 1))


def assert_refused(task: Path, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert built(task, store=task / "store") == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert words in line
    assert not (task / "store" / "colours").exists()
    assert not list((task / "store").glob(".build-*"))
