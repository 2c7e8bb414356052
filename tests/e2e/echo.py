"""A model that returns its inputs: a tensor of each datatype, with the datatype's extreme values."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import yaml
from numpy.typing import NDArray

from deploy.models import ModelEntry

NAME = "echo"
MOST_ROWS = 4
NUMBERS: dict[str, Any] = {
    "BOOL": bool,
    **{f"{sign}INT{bits}": np.dtype(f"{sign}int{bits}".lower()) for sign in ("U", "") for bits in (8, 16, 32, 64)},
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
}
# Not in the order of the alphabet, which metadata has to keep.
DATATYPES = ("BYTES", *NUMBERS)
SHAPE = [-1, -1, 2]
TEXTS = [b"", "räv 뉴스".encode(), b"\xff\x00\xfe", b"a" * 300]


def entry(folder: Path) -> ModelEntry:
    parameters, given = ", ".join(DATATYPES), ", ".join(f"'{name}': {name}" for name in DATATYPES)
    (folder / "infer.py").write_text(f"def infer({parameters}):\n    return {{{given}}}\n")
    tensors = {name: {"datatype": name, "shape": SHAPE} for name in DATATYPES}
    settings = {"max_request_items": MOST_ROWS, "allow_non_finite": True, "inputs": tensors, "outputs": tensors}
    (folder / "model-config.yaml").write_text(yaml.safe_dump({"handler": settings}, sort_keys=False))
    return ModelEntry(NAME, "tensors", "1", folder, {"path": "infer.py"})


def values(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Elements of a datatype, its extremes among them."""
    count = int(np.prod(shape))
    if name == "BYTES":
        return np.array((TEXTS * count)[:count], object).reshape(shape)
    dtype = np.dtype(NUMBERS[name])
    if dtype.kind == "b":
        extremes: list[Any] = [True, False]
    elif dtype.kind in "iu":
        extremes = [np.iinfo(dtype).min, np.iinfo(dtype).max, 1]
    else:
        limits: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        extremes = [limits.max, limits.min, limits.smallest_subnormal, -0.0, 0.1, np.nan, np.inf, -np.inf]
    return np.array((extremes * count)[:count], dtype).reshape(shape)


def everything(rows: int = 2, positions: int = 4) -> dict[str, NDArray[Any]]:
    return {name: values(name, (rows, positions, 2)) for name in DATATYPES}


def assert_same(answered: NDArray[Any], sent: NDArray[Any]) -> None:
    """Fail unless they are equal to the last bit."""
    assert (answered.dtype, answered.shape) == (sent.dtype, sent.shape)
    assert answered.tolist() == sent.tolist() if sent.dtype == object else answered.tobytes() == sent.tobytes()
