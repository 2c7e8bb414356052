"""Archives of `handler: tensors` with a Python function, and the proof that it batches."""

import sys
from pathlib import Path

import pytest

from deploy.models import Model
from deploy.sources import source
from deploy.tensors import stage
from handlers.errors import InvalidConfig
from tests.tensor_files import (
    files,
    infer_py,
    staged,
)

DECLARED = {"inputs": {"x": {"datatype": "FP32", "shape": [-1, 2]}}}


def test_stage_of_a_function_alone_and_of_its_folder(tmp_path: Path) -> None:
    text = "from double import double\n\ndef load(folder, device):\n    (folder / 'cache').write_text(device)\n\n"
    own = tmp_path / "own"
    infer = infer_py(own, text + "def infer(x):\n    return {'y': double(x)}")
    (own / "double.py").write_text("def double(x):\n    return x * 2\n")
    (own / "deep").mkdir()
    (own / "deep" / "table.csv").write_text("1,2\n")
    (own / ".hidden").write_text("")
    (own / "__pycache__").mkdir()
    (own / "__pycache__" / "double.pyc").write_bytes(b"")
    folder = staged(own, DECLARED)
    assert files(folder) == {
        *("function/infer.py", "function/double.py", "function/deep/table.csv", "function/model-config.yaml")
    }
    infer.write_text("def infer(*, a, b):\n    raise ValueError\n")
    entry = Model("own", "tensors", "1", tmp_path / "nowhere", {"path": "own/infer.py"})
    (tmp_path / "alone").mkdir()
    stage(entry, source(entry, None), "auto", tmp_path / "alone")
    # Nothing is declared, so that nothing was run.
    assert files(tmp_path / "alone") == {"function/infer.py"}


def test_stage_of_two_functions_imports_the_modules_of_each(tmp_path: Path) -> None:
    """In one process, as archive.sh --all does."""
    for name, factor in (("one", 2), ("two", 3)):
        place = tmp_path / name / "own"
        place.parent.mkdir()
        infer_py(place, f"from factor import FACTOR\nassert FACTOR == {factor}\n\ndef infer(x): ...")
        (place / "factor.py").write_text(f"FACTOR = {factor}\n")
        staged(place)
    assert not {"infer", "factor"} & sys.modules.keys()
    assert not [place for place in sys.path if place.startswith(str(tmp_path))]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return {'y': x[:1]}", "infer.py: run on 3 rows: y: 1 rows came back for 3."),
        ("return {'y': x - x.mean()}", "infer.py: outputs.y: 3 rows together give other values than each alone"),
        ("return x", "infer.py: run on 1 row: A ndarray came back; arrays by name are needed."),
        ("return {'y': x.astype('f8')}", "infer.py: run on 1 row: y: FP64 came back; FP32 is expected."),
        ("return {'z': x}", "infer.py: run on 1 row: y: the model gave none."),
        (
            "return {'y': x.reshape(1, 2)}",
            "infer.py: it runs on one row, x [1, 2], and not on 3 together: ValueError: ",
        ),
    ],
)
def test_stage_of_a_function_that_does_not_batch_is_refused(body: str, words: str, tmp_path: Path) -> None:
    settings = {**DECLARED, "outputs": {"y": {"datatype": "FP32"}}}
    with pytest.raises(InvalidConfig) as raised:
        staged(infer_py(tmp_path, f"def infer(x):\n    {body}"), settings)
    assert str(raised.value).startswith(f"own: {words}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import nobodys_package\ndef infer(x): ...",
            "cannot be imported: ModuleNotFoundError: No module named 'nobod",
        ),
        ("def infer(x:", "infer.py: it cannot be imported: SyntaxError: "),
        ("def inference(x): ...", "infer.py: it defines no infer(**inputs)"),
        ("def infer(**inputs): ...", "infer.py: infer: inputs: each input is a parameter with a name of its own"),
        ("def load(folder, device):\n    raise OSError('no disk')\ndef infer(x): ...", "load failed: OSError: no disk"),
    ],
)
def test_stage_of_a_function_that_cannot_be_called_is_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as raised:
        staged(infer_py(tmp_path, text), DECLARED)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("body", "printed"),
    [
        # What it refuses may be what no client sends.
        ("raise ValueError('x must be above 7')", "own: not shown to batch: it does not run on one row, x [1, 2]: Val"),
        # Noise of its own, as of a model that samples.
        ("return {'y': x + np.random.random(x.shape)}", ""),
        ("x[:] = 0; return {'y': x}", ""),
    ],
)
def test_stage_of_a_function_that_nobody_can_judge_is_built(
    body: str, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert files(staged(infer_py(tmp_path, f"def infer(x):\n    {body}"), DECLARED)) == {"function/infer.py"}
    assert capsys.readouterr().out.startswith(printed)
