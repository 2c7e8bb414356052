"""The search for layers that hurt, on graphs that a small quantiser of the test's own rounds: NNCF is not needed."""

from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as opset

from deploy.precision import int8
from deploy.precision.int8 import calibrating, make
from deploy.precision.quantise import Order, samples
from deploy.precision.search import layers_of, ranked, tries, write_released
from handlers.archive_files import GRAPH, INT8_GRAPH
from handlers.proofs import Proof

WIDTH, LAYERS = 16, 8
# The layer whose activations are rounded to three values, not to 256.
ROUGH = 5


def exact_graph(folder: Path) -> Path:
    """A chain of matrices, each followed by a tanh: rows (B, WIDTH) -> (B, WIDTH)."""
    generator = np.random.default_rng(0)
    rows = opset.parameter([-1, WIDTH], np.float32, name="rows")
    node = rows
    for number in range(LAYERS):
        weights = generator.normal(0, 1 / np.sqrt(WIDTH), (WIDTH, WIDTH)).astype(np.float32)
        product = opset.matmul(node, opset.constant(weights), transpose_a=False, transpose_b=False)
        product.set_friendly_name(f"layer{number}")
        node = opset.tanh(product)
    graph = openvino.Model([opset.result(node)], [rows], "chain")
    graph.inputs[0].get_tensor().set_names({"rows"})
    graph.outputs[0].get_tensor().set_names({"out"})
    openvino.save_model(graph, folder / GRAPH, compress_to_fp16=False)
    return folder / GRAPH


def rounded(order: Order, _longest_s: float, rough: tuple[int, ...] = (ROUGH,)) -> None:
    """Round what each layer is given: to 256 values, or to three where it is to hurt."""
    graph = openvino.Core().read_model(order.graph)
    assert [each["rows"].shape for each in samples(Path(order.inputs))] == [(1, WIDTH)] * 40
    for operation in graph.get_ordered_ops():
        if operation.get_type_name() == "MatMul":
            levels = 3 if operation.get_friendly_name() in {f"layer{number}" for number in rough} else 256
            bounds = [opset.constant(np.float32(bound)) for bound in (-3, 3, -3, 3)]
            rounding = opset.fake_quantize(operation.input_value(0), *bounds, levels)
            operation.input(0).replace_source_output(rounding.output(0))
    openvino.save_model(graph, order.out, compress_to_fp16=False)


@pytest.fixture
def inputs() -> list[dict[str, Any]]:
    generator = np.random.default_rng(1)
    return [{"rows": generator.normal(0, 1, (1, WIDTH)).astype(np.float32)} for _ in range(40)]


def quantised(tmp_path: Path, inputs: list[dict[str, Any]]) -> tuple[Path, Path]:
    exact, out = exact_graph(tmp_path), tmp_path / "rounded.xml"
    np.savez(tmp_path / "inputs.npz", **{f"{number}/rows": each["rows"] for number, each in enumerate(inputs)})
    rounded(Order(str(exact), str(tmp_path / "inputs.npz"), str(out), is_transformer=False), 1)
    return exact, out


def test_layer_that_hurts_most_is_ranked_first_and_released_alone(tmp_path: Path, inputs: list[dict[str, Any]]) -> None:
    exact, out = quantised(tmp_path, inputs)
    assert layers_of(out) == [f"layer{number}" for number in range(LAYERS)]
    groups = ranked(exact, out, inputs[:8], longest_s=120)
    assert groups[0] == [f"layer{ROUGH}"]
    assert sorted(name for group in groups for name in group) == layers_of(out)
    write_released(out, groups[0], tmp_path / "deep" / "released.xml")
    assert layers_of(tmp_path / "deep" / "released.xml") == [f"layer{n}" for n in range(LAYERS) if n != ROUGH]


def test_ranking_without_time_has_few_groups_of_many_layers(tmp_path: Path, inputs: list[dict[str, Any]]) -> None:
    exact, out = quantised(tmp_path, inputs)
    groups = ranked(exact, out, inputs[:1], longest_s=0)
    assert len(groups) == 1
    assert len(groups[0]) == LAYERS // 2


def test_tries_grow_until_half_of_the_layers_are_in_floating_point() -> None:
    groups = [[name] for name in "abcdefgh"]
    assert ["".join(kept) for kept in tries(groups, 8)] == ["a", "ab", "abc", "abcd"]
    assert list(tries([], 8)) == []
    assert list(tries([list("abcde")], 8)) == []


def prover(folder: Path, inputs: list[dict[str, Any]], least: float) -> Any:
    def run(path: Path) -> Any:
        compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return np.concatenate([compiled(each)[0] for each in inputs])

    exact = run(folder / GRAPH)

    def prove(path: Path) -> Proof:
        cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(exact, run(path), strict=True)]
        return Proof("cosine", float(np.mean(cosines)), None, len(cosines), least)

    return prove


def made(tmp_path: Path, inputs: list[dict[str, Any]], least: float) -> tuple[int8.Int8, list[str], Path]:
    out = tmp_path / "out"
    out.mkdir()
    exact_graph(tmp_path)
    said: list[str] = []
    prove = prover(tmp_path, inputs, least)
    found = make(tmp_path, out, inputs, prove, is_transformer=False, say=said.append, quantise=rounded)
    return found, said, out


def test_layer_that_hurts_stays_in_floating_point_and_is_named(tmp_path: Path, inputs: list[dict[str, Any]]) -> None:
    found, said, out = made(tmp_path, inputs, 0.995)
    assert found.proof.holds
    assert (found.kept, found.layers, found.calibrated) == ((f"layer{ROUGH}",), LAYERS, 40)
    assert said[0].startswith("int8: cosine 0.")
    assert "; calibrated on 40 inputs, " in said[0]
    assert said[1] == "int8: less than 0.995: looking among 8 layers for those that hurt"
    assert said[2].endswith("; 1 of 8 layers in floating point")
    assert said[3:] == [f"int8: in floating point stay layer{ROUGH}"]
    assert layers_of(out / INT8_GRAPH) == [f"layer{number}" for number in range(LAYERS) if number != ROUGH]


def test_int8_that_holds_at_once_is_not_searched(tmp_path: Path, inputs: list[dict[str, Any]]) -> None:
    found, said, out = made(tmp_path, inputs, 0.0)
    assert (found.kept, len(said)) == ((), 1)
    assert len(layers_of(out / INT8_GRAPH)) == LAYERS


def test_int8_that_never_holds_leaves_no_graph(tmp_path: Path, inputs: list[dict[str, Any]]) -> None:
    found, said, out = made(tmp_path, inputs, 1.1)
    assert not found.proof.holds
    assert len(found.kept) <= LAYERS // 2
    assert len(said) == 2 + 4
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("inputs", "answer_s", "count"), [(225, 0.01, 225), (225, 0.1, 75), (225, 5.0, 32), (20, 5.0, 20)]
)
def test_as_many_inputs_calibrate_as_the_time_allows(inputs: int, answer_s: float, count: int) -> None:
    assert calibrating(inputs, answer_s) == count
