"""Models of any signature, as hypothesis draws them: names, datatypes, shapes, batch dimensions; and their answers.

Every output is computed row by row from one input, so that the oracle is the same function on one row at a time.

    Drawn -> source        -> infer.py
    Drawn -> settings      -> model-config.yaml
    Drawn -> requests      -> arrays of some rows
    Drawn -> wanted        -> what each row is answered with
"""

import keyword
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from handlers.protocol.tensors import DTYPES

DATATYPES = sorted(DTYPES)
# What the protocol, forms of JSON and the written function call otherwise; __debug__ is Python's.
RESERVED = frozenset({"inputs", "instances", "error", "infer", "np", "self", "__debug__"})
NAMES = st.text("abXYZ_019", min_size=1, max_size=5).filter(
    lambda name: name.isidentifier() and not keyword.iskeyword(name) and name not in RESERVED
)
# Any text that is printed, apart from what JSON would have escaped: the protocol leaves names to the model.
OUTPUT_NAMES = st.one_of(
    NAMES, st.text("abc ./-:é漢", min_size=1, max_size=6).filter(lambda name: name.strip() == name)
)


@dataclass(frozen=True)
class Drawn:
    """An input or an output: of an output, `source` is the input that it is computed from."""

    name: str
    datatype: str
    row: tuple[int, ...]  # -1 where free
    batch_dim: int
    source: str = ""
    kind: str = ""

    @property
    def shape(self) -> list[int]:
        return [*self.row[: self.batch_dim], -1, *self.row[self.batch_dim :]]


@dataclass(frozen=True)
class Model:
    """A model, whether its configuration declares datatypes and shapes, and requests of so many rows."""

    inputs: tuple[Drawn, ...]
    outputs: tuple[Drawn, ...]
    is_declared: bool
    # Of each request, how many rows it has, and the size of its free dimensions.
    requests: tuple[tuple[int, int], ...]
    seed: int

    @property
    def source(self) -> str:
        parameters = ", ".join(tensor.name for tensor in self.inputs)
        by_name = {tensor.name: tensor for tensor in self.inputs}
        results = ", ".join(f"{out.name!r}: {written(out, by_name[out.source])}" for out in self.outputs)
        return f"def infer({parameters}):\n    return {{{results}}}\n"

    @property
    def settings(self) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        outputs: dict[str, Any] = {}
        for tensors, said in ((self.inputs, inputs), (self.outputs, outputs)):
            for tensor in tensors:
                if self.is_declared:
                    said[tensor.name] = {"datatype": tensor.datatype, "shape": tensor.shape}
                if tensor.batch_dim:
                    said.setdefault(tensor.name, {})["batch_dim"] = tensor.batch_dim
        # Who names one output names all.
        if outputs:
            outputs = {tensor.name: outputs.get(tensor.name, {}) for tensor in self.outputs}
        return {"inputs": inputs, "outputs": outputs}

    def arrays(self, request: int) -> dict[str, NDArray[Any]]:
        """The inputs of a request, of the dtypes in which numpy has them: BF16 as FP32."""
        count, free = self.requests[request]
        noise = np.random.default_rng(self.seed + request)
        arrays = {}
        for tensor in self.inputs:
            row = tuple(free if size < 0 else size for size in tensor.row)
            shape = (*row[: tensor.batch_dim], count, *row[tensor.batch_dim :])
            arrays[tensor.name] = values(tensor.datatype, shape, noise)
        return arrays

    def wanted(self, arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The outputs, computed row by row; text as str."""
        by_name = {tensor.name: tensor for tensor in self.inputs}
        outputs = {}
        for out in self.outputs:
            source = by_name[out.source]
            rows = [of_row(out.kind, row) for row in np.moveaxis(arrays[out.source], source.batch_dim, 0)]
            outputs[out.name] = np.stack(rows, axis=out.batch_dim)
        return outputs


def written(out: Drawn, source: Drawn) -> str:
    """The expression of an output over all rows at once: another way to the same than `of_row`."""
    rows = f"np.moveaxis({source.name}, {source.batch_dim}, 0)"
    if out.kind == "same":
        made = rows
    elif out.kind == "size":
        count = f"{source.name}.shape[{source.batch_dim}]"
        made = f"np.full({count}, {source.name}.size // {count}, np.int64)"
    else:
        made = f"np.stack([{rows}, {rows}], 1)"
    return f"np.moveaxis({made}, 0, {out.batch_dim})"


def of_row(kind: str, row: NDArray[Any]) -> NDArray[Any]:
    """What a row is answered with."""
    if kind == "same":
        return np.asarray(row)
    if kind == "size":
        return np.array(np.asarray(row).size)
    return np.array([row, row], np.asarray(row).dtype)


def values(datatype: str, shape: tuple[int, ...], noise: np.random.Generator) -> NDArray[Any]:
    """Anything that a datatype has and that all forms of requests can carry."""
    dtype = DTYPES[datatype]
    if dtype.kind == "O":
        letters = noise.choice(["", "a", "é", "漢字", '"\\', "x" * 20], shape)
        return np.asarray(letters, object)
    if dtype.kind == "b":
        return np.asarray(noise.integers(0, 2, shape), bool)
    if dtype.kind in "iu":
        bounds: Any = np.iinfo(dtype.char)
        return np.asarray(noise.integers(bounds.min, bounds.max, shape, dtype.type, endpoint=True))
    # Quarters are exact in every type, and in JSON.
    return np.asarray(noise.integers(-64, 64, shape) / 4, np.float32 if dtype.kind == "V" else dtype)


@st.composite
def tensors(draw: st.DrawFn, name: str) -> Drawn:
    row = tuple(draw(st.lists(st.sampled_from([-1, 1, 2, 3]), max_size=3)))
    return Drawn(name, draw(st.sampled_from(DATATYPES)), row, draw(st.integers(0, len(row))))


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Draw a model and what it is asked."""
    inputs = tuple(draw(tensors(name)) for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)))
    outputs = []
    for name in draw(st.lists(OUTPUT_NAMES, min_size=1, max_size=3, unique=True)):
        source = draw(st.sampled_from(inputs))
        kind = draw(st.sampled_from(["same", "size", "twice"]))
        row = {"same": source.row, "size": (), "twice": (2, *source.row)}[kind]
        datatype = "INT64" if kind == "size" else source.datatype
        outputs.append(Drawn(name, datatype, row, draw(st.integers(0, len(row))), source.name, kind))
    # Where nothing is declared, nobody but the client knows of BF16.
    is_narrow = any(tensor.datatype == "BF16" for tensor in inputs)
    requests = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3))
    return Model(inputs, tuple(outputs), is_narrow or draw(st.booleans()), tuple(requests), draw(st.integers(0, 2**32)))
