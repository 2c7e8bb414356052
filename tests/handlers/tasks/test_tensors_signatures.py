"""Two hundred models of any signature, asked in every form: what each answers is the function applied row by row."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from numpy.typing import NDArray
from ts.context import Context

from handlers.protocol.tensors import to_bfloat16
from handlers.tasks.tensors import TensorsHandler
from tests.handlers.serving import Answer, context, serve
from tests.handlers.tensor_models.generated import Model, models
from tests.handlers.tensor_models.models import (
    ACCEPT_NPZ,
    Body,
    columns,
    inference,
    inputs,
    instances,
    list_of,
    npz,
    unzipped,
)


@pytest.fixture(scope="module")
def worker() -> Context:
    """What all workers share: reading the metrics' declarations takes longer than a model."""
    return context(Path(), {})


@contextmanager
def served(model: Model, worker: Context) -> Iterator[TensorsHandler]:
    with TemporaryDirectory() as folder:
        place = Path(folder) / "function"
        place.mkdir()
        (place / "infer.py").write_text(f"import numpy as np\n\n{model.source}", encoding="utf-8")
        handler = TensorsHandler()
        handler.worker_context = worker
        worker.system_properties["model_dir"] = folder
        worker.model_yaml_config = {"handler": model.settings}
        handler.initialize(worker)
        yield handler


def tensors_of(model: Model, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The same as the protocol has them."""
    narrow = {tensor.name for tensor in model.inputs if tensor.datatype == "BF16"}
    return {name: to_bfloat16(array) if name in narrow else array for name, array in arrays.items()}


def rows_of(model: Model, arrays: dict[str, NDArray[Any]], is_input: bool = True) -> list[dict[str, Any]]:
    """Each row's values as JSON has them."""
    dims = {tensor.name: tensor.batch_dim for tensor in (model.inputs if is_input else model.outputs)}
    by_row = {name: np.moveaxis(array, dims[name], 0) for name, array in arrays.items()}
    count = len(next(iter(by_row.values())))
    return [{name: np.asarray(array[row]).tolist() for name, array in by_row.items()} for row in range(count)]


def check_tensors(model: Model, got: dict[str, NDArray[Any]], wanted: dict[str, NDArray[Any]], are_exact: bool) -> None:
    assert list(got) == [tensor.name for tensor in model.outputs]
    for name, array in wanted.items():
        read = np.array([each.decode() if isinstance(each, bytes) else each for each in got[name].ravel()], object)
        assert read.reshape(got[name].shape).tolist() == array.tolist()
        assert got[name].shape == array.shape
        if are_exact and array.dtype.kind not in "OU":
            assert got[name].dtype == array.dtype


def check(model: Model, answers: list[Answer], form: str, wanted: list[dict[str, NDArray[Any]]]) -> None:
    for answer, arrays in zip(answers, wanted, strict=True):
        assert answer.status == 200, (form, answer)
        if form in ("json", "binary"):
            check_tensors(model, columns(answer), arrays, are_exact=True)
        elif form == "npz":
            check_tensors(model, unzipped(answer), arrays, are_exact=False)
        elif form == "columns":
            assert answer.body == {"outputs": {name: array.tolist() for name, array in arrays.items()}}
        else:
            rows = rows_of(model, arrays, is_input=False)
            only = model.outputs[0].name
            assert answer.body == {"predictions": [row[only] for row in rows] if len(model.outputs) == 1 else rows}


def forms(model: Model, arrays: dict[str, NDArray[Any]]) -> dict[str, tuple[Body, Body]]:
    """A request in every form that can say it."""
    own = tensors_of(model, arrays)
    made = {"binary": inference(own, is_binary=True)}
    is_narrow = any(tensor.datatype == "BF16" for tensor in model.inputs)
    if not is_narrow:  # JSON of the protocol has none
        made["json"] = inference(own)
        made["npz"] = (
            npz(**{name: np.asarray(a, str) if a.dtype == object else a for name, a in arrays.items()}),
            ACCEPT_NPZ,
        )
    if model.is_declared:  # JSON's numbers say their datatype to who knows it already
        made["columns"] = inputs(**{name: list_of(array) for name, array in nested(arrays).items()}), {}
        made["instances"] = instances(*rows_of(model, arrays)), {}
    return made


def nested(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(array.astype(object)) for name, array in arrays.items()}


# A model is started for each: to make a failing one smaller would take minutes.
WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)


@settings(max_examples=200, deadline=None, phases=WITHOUT_SHRINKING, report_multiple_bugs=False)
@given(model=models())
def test_model_of_any_signature_answers_in_every_form_as_its_function_does(worker: Context, model: Model) -> None:
    given = [model.arrays(request) for request in range(len(model.requests))]
    wanted = [model.wanted(arrays) for arrays in given]
    asked = [forms(model, arrays) for arrays in given]
    with served(model, worker) as handler:
        for form in asked[0]:
            sent = [each[form] for each in asked]
            answers = serve(handler, [body for body, _ in sent], [headers for _, headers in sent])
            check(model, answers, form, wanted)
            # The same alone.
            body, headers = sent[-1]
            check(model, serve(handler, [body], [headers]), form, wanted[-1:])
