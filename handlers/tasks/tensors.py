"""A model of the user's own: tensors in, tensors out."""

import logging
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from mmap import ACCESS_READ, mmap
from pathlib import Path

from handlers.archive_files import GRAPH
from handlers.base import BatchHandler
from handlers.engines import EXPORTED, SCRIPTED, Arrays, Device, Engine, Outputs
from handlers.engines.function import FILE, FOLDER, FunctionEngine, load_function
from handlers.engines.onnx import FILE as ONNX
from handlers.engines.onnx import OnnxEngine
from handlers.engines.openvino import OpenVinoEngine
from handlers.errors import InvalidConfig, OutOfRange, TensorMismatch, reason
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.values import Archive, Inputs, Results
from handlers.protocol.fields import Fields
from handlers.protocol.output_tensors import Model
from handlers.protocol.requests import Items, Payload
from handlers.tensor_models.answers import describe_tensor, make_output_tensors
from handlers.tensor_models.bounds import find_out_of_range, integer_bounds
from handlers.tensor_models.checks import check_finite, check_outputs, describe_outputs
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.items import TensorItems
from handlers.tensor_models.rows import Row, Rows, make_sample_rows
from handlers.tensor_models.signature import (
    SIGNATURE,
    DeclaredSignature,
    Signature,
    Tensor,
    merge_signature,
    set_engine_types,
)

logger = logging.getLogger(__name__)

# OpenVINO's CPU plugin computes these in 32 bits, and cuts numbers off without an error: 2**40 + 3 becomes 3.
OPENVINO_COMPUTES_IN = {"INT64": "INT32", "UINT64": "INT32"}
# Names of operations with random results in files of OpenVINO, ONNX, torch.export and TorchScript.
RANDOM = (
    *(b"RandomUniform", b"RandomNormal", b"Multinomial", b"Bernoulli"),
    *(prefix + name for prefix in (b"aten.", b"torch.") for name in (b"rand", b"normal", b"multinomial", b"bernoulli")),
)
MOST_SIZES = 10_000  # accepted sizes of rows that are remembered


class TensorsHandler(BatchHandler[TensorsConfig, Row]):
    """Serves the files of an archive:

    function/infer.py    a Python function, with the other files of its folder
    model.xml, .bin      an OpenVINO graph
    onnx/model.onnx      an ONNX file, for ONNX Runtime
    model.pt2, model.pt  a PyTorch program
    signature.json       the graph's or the program's own description
    """

    config_class = TensorsConfig

    def load(self) -> Engine:
        engine, self.signature = load_model(self.archive, self.config)
        self.rows = Rows(self.signature)
        has_free_sizes = any(tensor.free for tensor in self.signature.inputs.values())
        self._graph = engine if has_free_sizes and isinstance(engine, OpenVinoEngine) else None
        self._accepted: set[tuple[tuple[str, tuple[int, ...]], ...]] = set()
        self._bounds = integer_bounds(engine.model) if isinstance(engine, OpenVinoEngine) else {}
        tensors = {name: describe_tensor(tensor) for name, tensor in self.signature.inputs.items()}
        self.inputs = Inputs(frozenset(tensors), tensors=tensors, in_threads=False, items=self._make_items)
        dimensions = {name: tensor.batch_dim for name, tensor in (self.signature.outputs or {}).items()}
        self._samples = [row for row in make_sample_rows(self.signature, self.config) if self._accepts(engine, row)]
        self.outputs = self.signature.outputs  # None if only a run shows the outputs of a function
        if self._samples and self.outputs is None:
            # For inputs of declared datatypes, a function always returns the same outputs.
            rows = [self.rows.make_row(self._samples[0])]
            self.outputs = describe_outputs(check_outputs(engine.run(self.collate(rows)), None, len(rows), {}))
        is_repeatable = not isinstance(engine, FunctionEngine) and not has_random(self.archive.model_dir)
        tensors_out = make_output_tensors(self.outputs)
        self.results = Results(tensors_out, batch_dims=dimensions, is_repeatable=is_repeatable)
        self.engine = engine
        return engine

    def _accepts(self, engine: Engine, sample: Arrays) -> bool:
        """Whether a model that checks its indices accepts a sample's whole numbers, which are 0 and 1."""
        is_whole = any(array.dtype.kind in "iu" for array in sample.values())
        if is_whole and not isinstance(engine, OpenVinoEngine | FunctionEngine):
            try:
                engine.run(self.collate([self.rows.make_row(sample)]))
            except OutOfRange as error:
                logger.warning("A sample of warm_up is left out: %s", reason(error.__cause__ or error))
                return False
        return True

    def sample(self) -> Sequence[Payload]:
        return [Payload(row) for row in self._samples]

    def _make_items(self, fields: Fields, model: Model) -> Items:
        """Rows of tensors, checked against the signature."""
        self._items = TensorItems(
            self.signature, self.rows, model, given=fields.tensors, most_rows=self.config.max_request_items
        )
        return self._items

    def decode(self, payload: Payload) -> Row:
        """Read a row's values, if they are JSON's."""
        arrays = self._items.read_row(payload)
        if not self.config.allow_non_finite:
            check_finite(arrays, self._items.given)
        row = self.rows.make_row(arrays)
        if (problem := find_out_of_range(row.arrays, self._bounds)) is not None:
            raise OutOfRange(problem)
        if self._graph is not None:
            self._check_sizes(self._graph, row)
        return row

    def _check_sizes(self, graph: OpenVinoEngine, row: Row) -> None:
        """Reject sizes that the graph cannot compute with: a run that fails may harm the runs after it."""
        sizes = tuple((name, array.shape) for name, array in row.arrays.items())
        if sizes in self._accepted:
            return
        # Masks that were not sent are inputs too.
        shapes = {name: array.shape for name, array in self.collate([row]).items()}
        try:
            graph.expect_accepted(shapes)
        except RuntimeError:
            raise TensorMismatch(f"The model cannot compute with inputs of {shapes}.") from None
        if len(self._accepted) >= MOST_SIZES:
            self._accepted.clear()
        self._accepted.add(sizes)

    def cost(self, item: Row) -> Cost:
        return item.cost

    def collate(self, items: Sequence[Row]) -> Arrays:
        """Join the rows along each input's batch dimension, padded if they differ."""
        return self.rows.collate(items)

    def forward(self, inputs: Arrays, items: Sequence[Row]) -> Outputs:
        """Run the model, and check its outputs against its signature."""
        outputs = check_outputs(self.engine.run(inputs), self.outputs, len(items), self.config.tensors.outputs)
        metadata = self.archive.metadata
        if self.outputs is None and not metadata.outputs:
            # Only names: datatypes and sizes may differ in other requests.
            metadata = replace(metadata, outputs=[describe_tensor(Tensor(name)) for name in outputs])
            self.archive = replace(self.archive, described=(self.archive.shape, metadata))
        return outputs

    def split(self, outputs: Outputs, items: Sequence[Row]) -> Sequence[object]:
        """Return the outputs of each row, by the model's names, with the batch dimension."""
        return self.rows.split_outputs(outputs, items, self.outputs)


def has_random(folder: Path) -> bool:
    """Whether a file of the model names an operation with random results."""
    for path in filter(Path.is_file, (folder / name for name in (GRAPH, ONNX, EXPORTED))):
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            if any(data.find(name) >= 0 for name in RANDOM):
                return True
    if not (folder / SCRIPTED).is_file():
        return False
    with zipfile.ZipFile(folder / SCRIPTED) as program:  # its code is compressed
        code = b"".join(program.read(name) for name in program.namelist() if name.endswith(".py"))
    return any(name in code for name in RANDOM)


def load_model(archive: Archive, config: TensorsConfig) -> tuple[Engine, Signature]:
    """Load the model of an archive; InvalidConfig if the model cannot be served."""
    folder, device = archive.model_dir, archive.device
    functions = folder / FOLDER
    if functions.is_dir():
        return _load_function(functions, config, device)
    path = folder / SIGNATURE
    if not path.is_file():
        raise InvalidConfig(f"this archive lacks {SIGNATURE} and {FOLDER}/{FILE}; name weights, and build it again")
    signature = merge_signature(DeclaredSignature.from_json(path.read_text(encoding="utf-8")), config)
    has_program = any((folder / name).is_file() for name in (EXPORTED, SCRIPTED))
    if archive.uses_torch(config) and (has_program or config.engine == "torch"):
        import torch  # noqa: PLC0415

        from handlers.engines.program import ProgramEngine, load_program  # noqa: PLC0415

        dtypes = {name: torch.bfloat16 if t.datatype == "BF16" else None for name, t in signature.arguments.items()}
        names = [*signature.outputs] if signature.outputs else []
        program = load_program(folder, device)
        return ProgramEngine(
            program, device, dtypes, names, precision=config.precision, threads=config.threads
        ), signature
    if config.engine == "onnxruntime" or (config.engine == "auto" and (folder / ONNX).is_file()):
        return OnnxEngine(folder / ONNX, precision=config.precision, threads=config.threads), signature
    engine = OpenVinoEngine(folder / GRAPH, precision=config.precision, threads=config.threads)
    return engine, set_engine_types(signature, OPENVINO_COMPUTES_IN)


def _load_function(folder: Path, config: TensorsConfig, device: Device) -> tuple[Engine, Signature]:
    function = load_function(folder)
    if function.load is not None:
        try:
            function.load(folder, str(device))
        except Exception as error:
            reason = str(error).partition("\n")[0]  # the owner of the function reads this line; the traceback follows
            raise InvalidConfig(f"{FILE}: load failed: {type(error).__name__}: {reason}") from error
    signature = merge_signature(DeclaredSignature(tuple(Tensor(name) for name in function.inputs)), config)
    return FunctionEngine(function.infer, function.inputs), signature
