"""Graphs and programs in a worker: the numbers of ONNX's own runtime and PyTorch's, batched and alone, in any order."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from handlers.engines.program import ProgramEngine
from handlers.protocol.tensors import from_bfloat16, to_bfloat16
from handlers.tasks.tensors import TensorsHandler
from handlers.tensor_models.signature import Said, Tensor
from tests.handlers.tensor_models.models import (
    answers,
    ask,
    columns,
    exported,
    graph,
    in_both_modes,
    inference,
    instances,
    npy,
    scripted,
    tensor,
)

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

NOISE = np.random.default_rng(23)
WEIGHTS = NOISE.normal(size=(3, 5)).astype(np.float32)


def network() -> Any:
    """Two inputs, one of them with a free dimension; two outputs, the first with its rows along dimension 1."""
    nodes = [
        helper.make_node("MatMul", ["image", "weights"], ["features"]),
        helper.make_node("Transpose", ["features"], ["turned"], perm=[1, 0]),
        helper.make_node("Tanh", ["turned"], ["scores"]),
        helper.make_node("ReduceSum", ["steps", "axis"], ["total"], keepdims=0),
    ]
    made = helper.make_graph(
        nodes,
        "network",
        [
            helper.make_tensor_value_info("image", TensorProto.FLOAT, ["B", 3]),
            helper.make_tensor_value_info("steps", TensorProto.INT64, ["T", "B"]),
        ],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [5, "B"]),
            helper.make_tensor_value_info("total", TensorProto.INT64, ["B"]),
        ],
        [numpy_helper.from_array(WEIGHTS, "weights"), numpy_helper.from_array(np.array([0], np.int64), "axis")],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


SAID = Said(
    (tensor("image", "FP32", -1, 3), tensor("steps", "INT64", -1, -1)),
    (tensor("scores", "FP32", 5, -1), tensor("total", "INT64", -1)),
)
BATCH_DIMS: dict[str, Any] = {"inputs": {"steps": {"batch_dim": 1}}, "outputs": {"scores": {"batch_dim": 1}}}


def rows(count: int, steps: int) -> dict[str, NDArray[Any]]:
    return {"image": NOISE.normal(size=(count, 3)).astype(np.float32), "steps": NOISE.integers(-9, 9, (steps, count))}


@in_both_modes
def test_graph_gives_the_numbers_of_onnxruntime_to_whoever_sent_the_rows(mode: dict[str, Any], tmp_path: Path) -> None:
    handler = graph(tmp_path, network(), SAID, **BATCH_DIMS, **mode)
    oracle = onnxruntime.InferenceSession(network().SerializeToString())
    given = [rows(count, steps) for count, steps in ((1, 4), (3, 4), (2, 7), (1, 7), (5, 4))]
    for order in ((0, 1, 2, 3, 4), (4, 2, 0, 3, 1), (2,)):
        got = answers(handler, [inference(given[index], is_binary=True) for index in order])
        for index, answer in zip(order, got, strict=True):
            scores, total = oracle.run(["scores", "total"], given[index])
            np.testing.assert_allclose(columns(answer)["scores"], scores, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(columns(answer)["total"], total)


class Network(torch.nn.Module):
    """A sequence and what scales it; a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.from_numpy(WEIGHTS))

    def forward(self, sequence: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": torch.tanh(sequence @ self.weights) * scale[:, None, None], "mean": sequence.mean((1, 2))}


TORCH_INPUTS = (tensor("sequence", "FP32", -1, -1, 3), tensor("scale", "FP32", -1))
TORCH_SAID = Said(TORCH_INPUTS, (tensor("scaled", "FP32", -1, -1, 5), tensor("mean", "FP32", -1)))


def torch_handler(kind: str, folder: Path, **settings: Any) -> tuple[TensorsHandler, torch.nn.Module]:
    module = Network().eval()
    if kind == "scripted":
        return scripted(folder, module, TORCH_SAID, **settings), module
    dims = {"sequence": {0: torch.export.Dim("b"), 1: torch.export.Dim("t")}, "scale": {0: torch.export.Dim("b")}}
    program = torch.export.export(module, (torch.ones(2, 4, 3), torch.ones(2)), dynamic_shapes=dims)
    return exported(folder, program, TORCH_SAID, **settings), module


def check_program(handler: TensorsHandler, module: torch.nn.Module, tolerance: float) -> None:
    given = [
        {
            "sequence": NOISE.normal(size=(count, steps, 3)).astype(np.float32),
            "scale": NOISE.normal(size=count).astype(np.float32),
        }
        for count, steps in ((1, 4), (3, 4), (2, 6), (1, 6))
    ]
    for order in ((0, 1, 2, 3), (3, 1, 2, 0), (1,)):
        got = answers(handler, [inference(given[index], is_binary=True) for index in order])
        for index, answer in zip(order, got, strict=True):
            with torch.inference_mode():
                wanted = module(*map(torch.from_numpy, given[index].values()))
            for name, array in columns(answer).items():
                np.testing.assert_allclose(array, wanted[name].numpy(), rtol=tolerance, atol=tolerance)


@in_both_modes
@pytest.mark.parametrize("kind", ["exported", "scripted"])
def test_program_gives_the_numbers_of_torch(kind: str, mode: dict[str, Any], tmp_path: Path) -> None:
    handler, module = torch_handler(kind, tmp_path, **mode)
    assert handler.engine.description.startswith("torch cpu")
    check_program(handler, module, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["exported", "scripted"])
def test_program_on_a_gpu_gives_the_numbers_of_torch(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("handlers.base._device", lambda _: torch.device("cuda", 0))
    # `auto` takes the program there, and nothing of OpenVINO.
    handler, module = torch_handler(kind, tmp_path, engine="auto")
    assert handler.engine.description == "torch cuda:0 fp32"
    check_program(handler, module, 1e-4)


class Remembering(torch.nn.Module):
    """Gives a buffer of its own, which the next run overwrites, and its input."""

    buffer: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buffer", torch.zeros(2, 2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.buffer[: x.shape[0]] = x
        return self.buffer[: x.shape[0]], x


@in_both_modes
def test_program_that_gives_the_same_memory_each_time_mixes_nobodys_numbers(
    mode: dict[str, Any], tmp_path: Path
) -> None:
    said = Said((tensor("x", "FP32", -1, 2),))
    handler = scripted(tmp_path, Remembering(), said, max_batch_size=2, **mode)
    given = NOISE.normal(size=(9, 1, 2)).astype(np.float32)
    for answer, row in zip(answers(handler, [inference({"x": x}, is_binary=True) for x in given]), given, strict=True):
        assert [array.tolist() for array in columns(answer).values()] == [row.tolist()] * 2


class Halving(torch.nn.Module):
    """One tensor of a narrow type."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


@pytest.mark.parametrize("datatype", ["BF16", "FP16", "FP64"])
def test_program_of_another_type_is_answered_in_it(datatype: str, tmp_path: Path) -> None:
    handler = scripted(tmp_path, Halving(), Said((tensor("x", datatype, -1, 2),), (tensor("output", datatype, -1, 2),)))
    array = np.array([[1, 3], [5, -2]])
    sent = to_bfloat16(array) if datatype == "BF16" else array.astype({"FP16": "f2", "FP64": "f8"}[datatype])
    ((body, headers), document) = inference({"x": sent}, is_binary=True), (array / 2).tolist()
    answer = ask(handler, body, headers)
    assert columns(answer)["output"].tolist() == document
    assert f'"datatype":"{datatype}"'.encode() in answer.body
    file = from_bfloat16(sent) if datatype == "BF16" else sent
    rest = ask(handler, instances(*array.tolist())), ask(handler, npy(file))
    assert rest[0].body["predictions"] == document
    # numpy's files have no BF16.
    assert rest[1].status == (400 if datatype == "BF16" else 200)


class Odd(torch.nn.Module):
    """What is no tensor."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x, 3


def test_program_that_gives_what_is_no_tensor_says_so(tmp_path: Path) -> None:
    handler = scripted(tmp_path, Odd(), Said((Tensor("x", None),)))
    answer = ask(handler, instances(1.0))
    assert (answer.status, answer.body["predictions"][0]["error"]["type"]) == (500, "WrongOutput")
    assert answer.body["predictions"][0]["error"]["message"] == "output_1: a int came back; an array is needed."


@in_both_modes
def test_program_that_memory_has_no_room_for_is_halved(
    mode: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sizes = ProgramEngine.run, []

    def crowded(self: Any, inputs: Any) -> Any:
        sizes.append(len(inputs["x"]))
        self._program = limited if sizes[-1] > 2 else program
        return run(self, inputs)

    def limited(*_: Any) -> Any:
        raise torch.OutOfMemoryError

    handler = scripted(tmp_path, Halving(), Said((tensor("x", "FP32", -1),)), max_batch_size=8, **mode)
    program = handler.engine._program  # type: ignore[attr-defined]
    monkeypatch.setattr(ProgramEngine, "run", crowded)
    (answer,) = answers(handler, [(instances(*range(8)), {})])
    assert answer.body["predictions"] == [number / 2 for number in range(8)]
    assert sizes == [8, 4, 2, 2, 4, 2, 2]
