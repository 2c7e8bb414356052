"""The ranges of numbers in a graph, at the edges at which a wrong one lets a row read beyond a table."""

from math import inf
from typing import Any

import numpy as np
import onnx.parser
import openvino
import pytest
from openvino import opset13

from deploy.archives.tensors.flow import Value, walk
from deploy.archives.tensors.risks import check_division
from deploy.archives.tensors.samples import DIGITS, make_swaying
from handlers.errors import InvalidConfig
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.signature import DeclaredSignature, Tensor, merge_signature
from tests.tables import table

SENT = Value(is_sent=True)


def find(result: Any, *parameters: Any) -> list[Value]:
    """Return the values of the outputs of a graph's last operation but the result."""
    *_, last, _ = walk(openvino.Model([result], [*parameters]), [SENT] * len(parameters))
    return [*last.outputs]


@table((np.float32, 6.0), (np.int32, 5))
def test_remainder_of_floats_may_round_to_the_divisor(kind: Any, most: float) -> None:
    x = opset13.parameter([-1], kind)
    remainder = opset13.floor_mod(x, np.array(6, kind))
    (value,) = find(opset13.round(remainder, "half_to_even") if kind == np.float32 else remainder, x)
    assert (value.least, value.most) == (0, most)


def test_positions_of_largest_numbers_lie_not_between_these_numbers() -> None:
    x = opset13.parameter([-1, 3, 8, 8], np.float32)
    pooled = opset13.max_pool(opset13.sigmoid(x), [2, 2], [1, 1], [0, 0], [0, 0], [2, 2])
    values, positions = find(pooled.output(1), x)
    assert (values.most, positions.most) == (1, inf)


@table((lambda x: x, 1), (opset13.log, inf), (lambda x: opset13.subtract(opset13.multiply(x, x), x), inf))
def test_whole_number_of_what_may_be_no_number_is_unknown(make: Any, most: float) -> None:
    """The square of a large number is infinite."""
    x = opset13.parameter([-1], np.float32)
    (value,) = find(opset13.convert(opset13.sigmoid(make(x)), "i64"), x)
    assert value.most == most


def test_value_of_a_request_is_followed_through_all_that_a_loop_carries() -> None:
    carried = [f"c{number}" for number in range(8)]
    body = ", ".join(f"float[n] {each}" for each in ("p", *carried))
    outs = ", ".join(f"float[n] {each}_out" for each in ("p", *carried))
    moves = "\n".join(f"{own}_out = Identity ({other})" for own, other in zip(carried, ("p", *carried), strict=False))
    zeros, ends = ", ".join(["z"] * len(carried)), ", ".join(f"y{number}" for number in range(len(carried)))
    graph = f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[n] x) => (float[n] y7) <int64 k = {{20}}, bool t = {{1}}> {{
        z = Sub (x, x)
        x_end, {ends} = Loop (k, t, z, {zeros}) <body = b (int64 i, bool c, {body}) => (bool c_out, {outs}) {{
            c_out = Identity (c) p_out = Add (p, x) {moves}
        }}>
    }}"""
    model = openvino.Core().read_model(onnx.parser.parse_model(graph).SerializeToString())
    *_, last, _ = walk(model, [Value(0, 1)])
    assert last.node.get_type_name() == "Loop"
    # Each next one gets the number of the one before, a run later.
    assert [value.most for value in last.outputs] == [inf] * (1 + len(carried))


@table(*((kind, False) for kind in ("INT8", "INT16", "UINT32")), *((kind, True) for kind in ("INT32", "INT64")))
def test_only_divisions_that_trap_are_rejected(kind: str, is_fatal: bool) -> None:
    x, z = (opset13.parameter([-1], np.dtype(kind.lower()), name) for name in "xz")
    for port in (x, z):
        port.output(0).set_names({port.get_friendly_name()})
    model = openvino.Model([opset13.divide(x, z)], [x, z])
    signature = merge_signature(DeclaredSignature(tuple(Tensor(name, kind, (-1,)) for name in "xz")), TensorsConfig())
    if not is_fatal:
        check_division(model, signature)
        return
    with pytest.raises(InvalidConfig, match="smallest whole number by -1"):
        check_division(model, signature)


def test_numbers_that_the_proof_sends_make_no_tensor_of_gigabytes() -> None:
    kinds = {"lengths": "INT64", "count": "UINT32", "byte": "INT8"}
    tensors = tuple(Tensor(name, kind, (-1, 2)) for name, kind in kinds.items())
    row = {name: np.ones((1, 2), kind.lower()) for name, kind in kinds.items()}
    rows = [row for _, row in make_swaying(row, merge_signature(DeclaredSignature(tensors), TensorsConfig()))]
    found = {name: (min(row[name].min() for row in rows), max(row[name].max() for row in rows)) for name in kinds}
    assert found == {"lengths": (-(2**20), 2**20), "count": (0, 2**20), "byte": (-128, 127)}
    assert max(map(max, DIGITS)) < 2**20
