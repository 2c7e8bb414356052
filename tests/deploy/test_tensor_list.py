"""Models of tensors in a list, and what archive.sh says of them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from deploy.archive import main
from deploy.models import ROOT, Model
from deploy.sources import WeightsUnavailable, source
from tests.tensor_files import (
    assert_scales,
    engine_of,
    garbage,
    infer_py,
    scaled_onnx,
)


def listed(folder: Path, *entries: str) -> list[str]:
    (folder / "models.yaml").write_text("\n".join(entries) + "\n")
    return ["--models", str(folder / "models.yaml"), "--export-path", str(folder / "store")]


def entry(name: str, weights: str, more: str = "") -> str:
    return f'{name}: {{handler: tensors, version: "3", weights: {weights}{more}}}'


def test_archive_of_a_file_beside_the_list_needs_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scaled_onnx(tmp_path / "m.onnx")
    arguments = listed(tmp_path, entry("scaled", "m.onnx"))
    signature = "scaled.mar: x FP32 [-1, 4], scale FP32 [-1, 1] -> scaled FP32 [-1, 3], total FP32 [-1]"
    for words in (": built, version 3, ", ": up to date"):
        assert main(["scaled", *arguments]) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert words in first
        assert second.endswith(signature)
    # A configuration that comes later counts.
    (tmp_path / "scaled").mkdir()
    (tmp_path / "scaled" / "model-config.yaml").write_text("handler: {inputs: {scale: {shape: [-1, 2]}}}\n")
    assert main(["scaled", *arguments]) == 1
    assert capsys.readouterr().err.strip() == (
        "archive.sh: scaled: m.onnx: inputs.scale: the model has [-1, 1], and not [-1, 2]"
    )


@pytest.mark.parametrize(("more", "words"), [((), "scaled: up to date"), (("--force",), "built, version 3")])
def test_archive_whose_conversion_is_known_imports_no_torch(more: tuple[str, ...], words: str, tmp_path: Path) -> None:
    arguments = [
        *listed(tmp_path, entry("scaled", scaled_onnx(tmp_path / "m.onnx").name)),
        *("--archive-format", "no-archive"),
    ]
    assert main(["scaled", *arguments]) == 0
    script = (
        "import sys; from deploy.archive import main; code = main(sys.argv[1:]); "
        "print(sorted({'torch', 'openvino', 'onnx', 'ts'} & set(sys.modules))); sys.exit(code)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script, "scaled", *arguments, *more],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    assert words in finished.stdout.splitlines()[0]
    assert finished.stdout.splitlines()[-1] == "[]"


def external(path: Path) -> Path:
    return scaled_onnx(
        path, save_as_external_data=True, all_tensors_to_one_file=True, location="of-x.bin", size_threshold=0
    )


def test_archive_of_onnx_with_external_data_is_made_of_that_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    external(tmp_path / "m.onnx")
    arguments = ["scaled", *listed(tmp_path, entry("scaled", "m.onnx")), "--archive-format", "no-archive"]
    assert main(arguments) == 0
    assert_scales(engine_of(tmp_path / "store" / "scaled")[0], 3)
    assert main(arguments) == 0
    assert "up to date" in capsys.readouterr().out
    data = (tmp_path / "of-x.bin").read_bytes()
    (tmp_path / "of-x.bin").write_bytes(b"\0" * 48 + data[48:])
    assert main(arguments) == 0
    assert ": built" in capsys.readouterr().out
    outputs = engine_of(tmp_path / "store" / "scaled")[0].run(
        {"x": np.ones((1, 4), "f4"), "scale": np.ones((1, 1), "f4")}
    )
    assert outputs["scaled"].tolist() == [[0, 0, 0]]
    (tmp_path / "of-x.bin").unlink()
    assert main(arguments) == 1
    assert capsys.readouterr().err.strip() == "archive.sh: scaled: m.onnx needs of-x.bin, which is not beside it"


def test_archive_takes_weights_of_the_models_folder_and_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["double", *listed(tmp_path, entry("double", "infer.py")), "--archive-format", "no-archive"]
    infer_py(tmp_path / "double", "def infer(*, x, y=None):\n    return {'y': x * 2}")
    assert main(arguments) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[1]
        .endswith("double: x any datatype of any shape, y any datatype of any shape -> whatever infer gives")
    )
    assert main([*arguments, "--weights", str(scaled_onnx(tmp_path / "m.onnx"))]) == 0
    assert (tmp_path / "store" / "double" / "model.xml").is_file()
    for choice, words in (
        ("random", "double: no random weights for tensors; give --weights PATH"),
        ("no.onnx", "double: no file no.onnx; give --weights PATH"),
        (
            str(tmp_path / "store"),
            "double: store/ must hold one model (.onnx, .xml, .pt2, .pt or infer.py); it has none",
        ),
    ):
        assert main([*arguments, "--weights", choice]) == 1
        assert capsys.readouterr().err.strip() == f"archive.sh: {words}"
    scaled_onnx(tmp_path / "double" / "n.onnx")
    garbage(tmp_path / "double" / "m.pt2")
    (tmp_path / "double" / "infer.py").unlink()
    assert main([*arguments, "--weights", str(tmp_path / "double")]) == 1
    assert "double/ must hold one model" in (error := capsys.readouterr().err)
    assert error.strip().endswith("it has m.pt2, n.onnx")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ('m: {handler: tensors, version: "1", weights: m.onnx}', "m: no m.onnx in {0}/ or {0}/m/; give --weights PATH"),
        (
            'm: {handler: tensors, version: "1", weights: [m]}',
            "models.yaml: m: weights must be a text, or a mapping of",
        ),
        ('m: {handler: tensors, version: "1", weights: {path: 7}}', "models.yaml: m: weights must be a text, or a map"),
        ('m: {handler: tensors, version: "1"}', "m: the list names no weights; give --weights PATH"),
        (
            'm: {handler: tensors, version: "1", weights: {hub: a/b}}',
            "m: no hub weights for tensors; give --weights PATH",
        ),
    ],
)
def test_archive_of_weights_that_are_not_there_is_one_line(
    entry: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["m", *listed(tmp_path, entry)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"archive.sh: {words.format(os.path.relpath(tmp_path))}")


def test_archive_of_what_a_program_makes_says_which_and_all_goes_on_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scaled_onnx(tmp_path / "m.onnx")
    arguments = listed(
        tmp_path, entry("trained", "t.onnx", ", made_by: train.py"), entry("scaled", "m.onnx", ", made_by: train.py")
    )
    words = f"trained: there is no t.onnx yet; python {os.path.relpath(tmp_path)}/trained/train.py makes it"
    assert main(["trained", *arguments]) == 1
    assert capsys.readouterr().err.strip() == f"archive.sh: {words}"
    assert main(["--all", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err.strip() == f"archive.sh: left out: {words}"
    assert "scaled.mar: built" in printed.out


def test_source_of_broken_onnx_is_still_the_file(tmp_path: Path) -> None:
    """What is no protobuf has no external data; who converts it says that it is broken."""
    for content in (b"", b"\xff" * 9, b"\x3a\xff\x01", b"\x0f"):
        (tmp_path / "m.onnx").write_bytes(content)
        model = Model("m", "tensors", "1", tmp_path / "m", {"path": "m.onnx"})
        assert source(model, None).kind == "file"
    with pytest.raises(WeightsUnavailable, match=r"m.xml needs m.bin, which is not beside it"):
        source(Model("m", "tensors", "1", tmp_path / "m", {"path": garbage(tmp_path / "m.xml").name}), None)
