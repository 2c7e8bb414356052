"""The folder of an unpacked archive, and each kind of damage to it."""

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from handlers import archive_files
from handlers.archive_files import BUILD, check
from handlers.errors import InvalidConfig
from tests.handlers.serving import Log, Patch, write_build

FILES = {
    **{"my_task.py": b"class MyTask: ...", "handlers/base.py": b"class BatchHandler: ..."},
    **{"model-config.yaml": b"handler: {}", "model.bin": b"0123456789" * 100_000},
    **{"checkpoint/config.json": b"{}", "checkpoint/modeling_own.py": b"class Own: ..."},
}


def lay(folder: Path, name: str, content: bytes = b"") -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def built(folder: Path, *, is_folder: bool = False) -> Path:
    for name, content in FILES.items():
        lay(folder, name, content)
    write_build(folder, [*FILES], is_folder=is_folder)
    lay(folder, "MAR-INF/MANIFEST.json", b"{}")
    return folder


def test_archive_as_it_was_built_has_its_fingerprint(tmp_path: Path) -> None:
    folder = built(tmp_path)
    compiled = ("__pycache__/my_task.cpython-311.pyc", "handlers/__pycache__/base.cpython-311.pyc")
    for name in (*compiled, "venv/lib/python3.11/site-packages/package/module.py", "computed.npy"):
        lay(folder, name)
    assert check(folder) == "f1"


def test_weights_that_only_torch_reads_are_looked_for_where_a_graph_is_served(tmp_path: Path) -> None:
    def problem_of(names: Sequence[str], damaged: str, content: bytes | None, *, is_torch_unread: bool = True) -> str:
        for name in names:
            lay(tmp_path, name, b"0123456789")
        write_build(tmp_path, names)
        if content is None:
            (tmp_path / damaged).unlink()
        else:
            lay(tmp_path, damaged, content)
        try:
            return check(tmp_path, is_torch_unread=is_torch_unread) or ""
        except InvalidConfig as rejected:
            return str(rejected)

    weights, other = "checkpoint/model.safetensors", b"9876543210"
    assert f"changed: {weights}" in problem_of([weights], weights, other)
    graph = ["model.xml", "model.bin", "model.pt", weights]
    assert [problem_of(graph, name, other) for name in ("model.pt", weights)] == ["f1", "f1"]
    assert "changed: model.pt" in problem_of(graph, "model.pt", other, is_torch_unread=False)
    assert "missing: model.pt" in problem_of(graph, "model.pt", None)
    assert "changed: model.bin" in problem_of(graph, "model.bin", other)


def edit(name: str, change: Any = lambda content: content + b"\n# edited") -> Callable[[Path], None]:
    return lambda folder: lay(folder, name, change(FILES[name]))


def add(name: str) -> tuple[Callable[[Path], None], str]:
    return lambda folder: lay(folder, name), f"not built: {name}"


def rewrite(change: Callable[[str], str]) -> tuple[Callable[[Path], object], str]:
    return lambda folder: (folder / BUILD).write_text(change((folder / BUILD).read_text())), f"changed: {BUILD}"


WEIGHTS_AND_CHECKPOINTS = [
    rewrite(lambda text: text.replace('"f1"', '"f2"')),
    # Version 0.1's.
    rewrite(lambda text: json.dumps({"fingerprint": json.loads(text)["fingerprint"], "weights": ""})),
    *map(rewrite, (lambda text: text[:-20], lambda _: "[]")),
    (edit("model.bin", lambda content: content[:-1]), "changed: model.bin"),
    (edit("model.bin", lambda content: content[:500_000] + b"!" + content[500_001:]), "changed: model.bin"),
    (lambda folder: (folder / "model.bin").unlink(), "missing: model.bin"),
    (edit("checkpoint/modeling_own.py"), "changed: checkpoint/modeling_own.py"),
    # transformers would load it beside the checkpoint.
    add("checkpoint/adapter_config.json"),
]
CODE_AND_SETTINGS = [
    *((edit("my_task.py"), "changed: my_task.py"), (edit("model-config.yaml"), "changed: model-config.yaml")),
    (lambda folder: (folder / "handlers/base.py").unlink(), "missing: handlers/base.py"),
    *map(add, ("email/message.py", "types.pyc", "numpy.so", "__pycache__/more.py")),
]


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize(("damage", "words"), WEIGHTS_AND_CHECKPOINTS + CODE_AND_SETTINGS)
def test_damage_is_rejected_or_logged(damage: Any, words: str, is_folder: bool, tmp_path: Any, caplog: Log) -> None:
    folder = built(tmp_path, is_folder=is_folder)
    assert check(folder) == "f1"
    damage(folder)
    if is_folder and (damage, words) in CODE_AND_SETTINGS:
        with caplog.at_level(logging.WARNING):
            assert check(folder) is None
        # A handler of another test may log metrics at any time.
        told = [record.getMessage() for record in caplog.records if record.name == "handlers.archive_files"]
        assert told == [f"This folder was edited since it was built: {words}"]
        return
    with pytest.raises(InvalidConfig) as rejected:
        check(folder)
    expected = f"the archive's files differ from its build: {words}; copy it again, or build it with --force"
    assert str(rejected.value) == expected


def test_archive_of_another_format_is_rejected_with_the_command_for_this(tmp_path: Path, monkeypatch: Patch) -> None:
    with monkeypatch.context() as former:
        former.setattr(archive_files, "FORMAT", 1)
        folder = built(tmp_path)
    expected = "this archive has format 1, and its handlers need format 5: build it again with "
    with pytest.raises(InvalidConfig, match=expected):
        check(folder)
    content = json.loads((folder / "build.json").read_text())
    del content["sum"], content["format"]
    content["sum"] = archive_files._sum(content)
    (folder / "build.json").write_text(json.dumps(content))
    with pytest.raises(InvalidConfig, match=expected):
        check(folder)
