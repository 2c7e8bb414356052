"""A model of the user's own: tensors in, tensors out."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from handlers.base import BatchHandler
from handlers.config import NoOptions, parse_options
from handlers.engines import Arrays, Engine, Outputs
from handlers.pipeline.micro_batches import Cost
from handlers.pipeline.warm_up import run
from handlers.protocol.fields import Fields
from handlers.protocol.open_inference import Model
from handlers.protocol.requests import Items, Payload
from handlers.tensor_models.answers import RowOutputs, described
from handlers.tensor_models.checks import checked_outputs, shown_outputs
from handlers.tensor_models.config import TensorsConfig
from handlers.tensor_models.files import NPY, NPZ
from handlers.tensor_models.items import TensorItems
from handlers.tensor_models.models import load_model
from handlers.tensor_models.rows import Row, Rows
from handlers.tensor_models.samples import sample_rows
from handlers.tensor_models.signature import Tensor


class TensorsHandler(BatchHandler[TensorsConfig, Row]):
    """Serves what the archive holds:

    function/infer.py    a Python function, with whatever else lies in its folder
    model.xml, .bin      an OpenVINO graph
    model.pt2, model.pt  a PyTorch program
    signature.json       what the graph or the program says of itself
    """

    config_class = TensorsConfig
    media_types = (NPY, NPZ)
    decodes_in_threads = False

    def load(self) -> Engine:
        """See `BatchHandler.load`."""
        engine, self.signature = load_model(self.model_dir, self.config, self.device, uses_torch=self.uses_torch)
        self.rows = Rows(self.signature)
        self.inputs = frozenset(self.signature.inputs)
        self.input_tensors = {name: described(tensor) for name, tensor in self.signature.inputs.items()}
        self.output_tensors = self.outputs = RowOutputs(self.signature.outputs)
        self.batch_dims = {name: tensor.batch_dim for name, tensor in (self.signature.outputs or {}).items()}
        self._samples = sample_rows(self.signature, self.config)
        if self._samples and self.signature.outputs is None:
            # What a function gives for inputs of declared datatypes is what it always gives.
            rows = [self.rows.row(self._samples[0])]
            self.outputs.signature = shown_outputs(checked_outputs(engine.run(self.collate(rows)), None, len(rows), {}))
        self.engine = engine
        if self.config.scheduling.mode == "classic" or not self.config.scheduling.warm_up_s:
            # The first is run in any case; an adaptive worker runs the others while nobody waits.
            for sample in self._samples[1:]:
                run(self, [self.rows.row(sample)])
        return engine

    def sample(self) -> Payload | None:
        """See `BatchHandler.sample`; the first of those that `warm_up` names."""
        return next(iter(self.samples()), None)

    def samples(self) -> Iterable[Payload]:
        """See `BatchHandler.samples`; one of each size that `warm_up` names."""
        return [Payload(row) for row in self._samples]

    def items(self, fields: Fields, model: Model) -> Items:
        """See `BatchHandler.items`; rows of tensors, held against the signature."""
        self._items = TensorItems(
            self.signature,
            self.rows,
            model,
            given=fields.tensors,
            most_rows=self.config.max_instances,
            most_bytes=self.config.max_body_bytes,
        )
        return self._items

    def decode(self, payload: Payload) -> Row:
        """Read a row's values, where they are JSON's still."""
        if payload.options:
            parse_options(NoOptions, payload.options)
        return self.rows.row(self._items.decoded(payload))

    def cost(self, item: Row) -> Cost:
        """See `BatchHandler.cost`; the row's positions along free dimensions, and the sizes that keep it apart."""
        return item.cost

    def collate(self, items: Sequence[Row]) -> Arrays:
        """Join the rows along each input's batch dimension, padded where they differ."""
        return self.rows.collated(items)

    def forward(self, inputs: Arrays, items: Sequence[Row]) -> Outputs:
        """Run the model, and hold what it gives against its signature."""
        signature = self.outputs.signature
        outputs = checked_outputs(self.engine.run(inputs), signature, len(items), self.config.tensors.outputs)
        if signature is None and not self.metadata.outputs:
            # Only names: datatypes and sizes may be those of whoever came first.
            self.metadata = replace(self.metadata, outputs=[described(Tensor(name)) for name in outputs])
        return outputs

    def split(self, outputs: Outputs, items: Sequence[Row]) -> Sequence[Any]:
        """Give each row its outputs, by the model's names, with the batch dimension."""
        return self.rows.parted(outputs, items, self.outputs.signature)
