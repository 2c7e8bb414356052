"""Archives of `task: tensors` with a Python function, and the proof that it batches."""

import sys
from pathlib import Path

import pytest

from handlers.errors import InvalidConfig
from tests.tensor_files import files, infer_py, staged

DECLARED = {"inputs": {"x": {"datatype": "FP32", "shape": [-1, 2]}}, "outputs": {"y": {"datatype": "FP32"}}}


def test_function_is_packed_with_its_folder_and_nothing_that_running_it_left(tmp_path: Path) -> None:
    """Two of them in one process, as archive.sh --all builds them: each imports its own modules."""
    text = "from factor import FACTOR\n\ndef load(folder, device):\n    (folder / 'cache').write_text(device)\n\n"
    for name, factor in (("one", 2), ("two", 3)):
        own = tmp_path / name / "own"
        (own / "deep").mkdir(parents=True)
        infer_py(own, text + f"def infer(x):\n    assert FACTOR == {factor}\n    return {{'y': x * FACTOR}}")
        (own / "factor.py").write_text(f"FACTOR = {factor}\n")
        (own / "deep" / "table.csv").write_text("1,2\n")
        (own / ".hidden").write_text("")
        (own / "__pycache__").mkdir()
        (own / "__pycache__" / "factor.pyc").write_bytes(b"")
        assert files(staged(own, DECLARED)) == {
            *("function/infer.py", "function/factor.py", "function/deep/table.csv", "function/model-config.yaml")
        }
    assert not {"infer", "factor"} & sys.modules.keys()
    assert not [place for place in sys.path if place.startswith(str(tmp_path))]


def test_function_named_by_itself_is_packed_alone_and_without_declared_inputs_not_run(tmp_path: Path) -> None:
    path = infer_py(tmp_path / "code", "def infer(*, a, b):\n    raise ValueError")
    (tmp_path / "code" / "other.py").write_text("")
    assert files(staged(path)) == {"function/infer.py"}


def test_function_with_random_results_is_packed(tmp_path: Path) -> None:
    text = "import numpy as np\ndef infer(x):\n    return {'y': x + np.random.rand(*x.shape).astype('f4')}"
    assert files(staged(infer_py(tmp_path, text), DECLARED)) == {"function/infer.py"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def infer(x):\n    return {'y': x[:1]}", "infer.py: run on 3 rows: y: 1 rows were returned for 3."),
        ("def infer(x):\n    return {'y': x - x.mean()}", "outputs.y: rows together have other values than each"),
        (
            "count = [0]\ndef infer(x):\n    count[0] += 1\n    return {'y': x + x.dtype.type(count[0])}",
            "outputs.y: two equal runs have other values, and the model has no random operation",
        ),
        ("def infer(x):\n    return {'y': x.astype('f8')}", "run on 1 row: y: FP64 was returned; FP32 is expected."),
        ("def infer(x):\n    return {'y': x.reshape(1, 2)}", "it runs on one row, x [1, 2], and not on 3 together: "),
        ("def infer(x:", "infer.py: the import failed: SyntaxError: "),
        ("def infer(**inputs): ...", "infer.py: infer: inputs: each input needs a named parameter, not * or **"),
        ("def load(folder, device):\n    raise OSError('no disk')\ndef infer(x): ...", "load failed: OSError: no disk"),
    ],
)
def test_function_that_does_not_batch_or_cannot_be_called_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as raised:
        staged(infer_py(tmp_path, text), DECLARED)
    assert str(raised.value).startswith("own: infer.py: ")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
