"""The requests of a model of tensors as rows. Pure.

Open Inference tensors  -> check_inputs                -> a payload for each row
{"inputs": {...}}       -> read_values -> check_inputs -> a payload for each row
{"instances": [...]}    -> a payload for each, whose values `read_row` reads as it is decoded
{"x": ..., ...}         -> one such payload
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from handlers.aliases import Array
from handlers.errors import BatchTooLarge, InvalidBody, TensorMismatch, UnsupportedMedia, show_name
from handlers.protocol.bodies import BodyInfo, check_count
from handlers.protocol.fields import instances_of
from handlers.protocol.output_tensors import Model
from handlers.protocol.requests import Payload, Payloads, Request
from handlers.protocol.responses import Instances, OneItem
from handlers.protocol.tensors import BF16, DTYPES, JSON_TYPES, convert, read_floats, to_bfloat16, to_objects
from handlers.tensor_models.answers import Columns, write_prediction, write_row
from handlers.tensor_models.checks import check_inputs, count_rows
from handlers.tensor_models.rows import Rows
from handlers.tensor_models.signature import GUESSED, Shape, Signature, Tensor, remove_dimension


class TensorItems:
    def __init__(
        self, signature: Signature, rows: Rows, model: Model, *, given: Mapping[str, str], most_rows: int
    ) -> None:
        self._signature, self._rows, self._model = signature, rows, model
        self._inputs = {name: signature.inputs[own] for name, own in given.items()}
        # By the clients' names, for messages.
        self._by_given_name = {name: replace(tensor, name=name) for name, tensor in self._inputs.items()}
        self.given = {own: name for name, own in given.items()}
        self._needed = [name for name, own in given.items() if own not in signature.masks]
        self._most_rows = most_rows

    def of_tensors(self, tensors: Mapping[str, Array], options: Mapping[str, object]) -> Payloads:
        """Make a payload of each row; an error is one of the whole request."""
        if len(tensors) == len(self._needed) == 1 and not tensors.keys() & self._inputs.keys():
            # The only input's tensor may have any name.
            tensors = dict(zip(self._needed, tensors.values(), strict=True))
        arrays = check_inputs(tensors, self._inputs, self._signature)
        count = count_rows(arrays, self._signature)
        self._check_count(count)
        return tuple(Payload(row, options) for row in self._rows.split_request(arrays, count))

    def of_body(self, body: bytes | bytearray | str, sent: BodyInfo) -> Request:  # noqa: ARG002
        """Reject a body in any other form than JSON."""
        raise UnsupportedMedia("The body is neither JSON nor an Open Inference request.")

    def of_json(self, document: object, sent: BodyInfo) -> Request:
        if isinstance(document, dict) and "instances" in document:
            if isinstance(document["instances"], list):
                self._check_count(len(document["instances"]))
            form = Instances(partial(write_prediction, self._model))
            return instances_of(document, sent.options, self._most_rows, self._instance, form)
        if isinstance(document, dict) and isinstance(document.get("inputs"), dict):
            options = {**sent.options, **{name: document[name] for name in document if name != "inputs"}}
            check_count(options)
            columns = self._check_names(document["inputs"])
            arrays = {name: read_values(v, self._by_given_name[name], is_row=False) for name, v in columns.items()}
            return Request(self.of_tensors(arrays, options), Columns(self._model))
        if isinstance(document, dict):
            return Request(
                (Payload(self._read_fields(document), sent.options),), OneItem(partial(write_row, self._model))
            )
        raise InvalidBody(self._describe_forms())

    def read_row(self, payload: Payload) -> Mapping[str, Array]:
        """Return the checked arrays of one row; InvalidInput if JSON's values do not fit the signature."""
        values: Any = payload.value
        sample = next(iter(values.values()))
        if hasattr(sample, "dtype"):
            return values  # type: ignore[no-any-return]
        arrays = {name: read_values(value, self._by_given_name[name], is_row=True) for name, value in values.items()}
        return check_inputs(arrays, self._inputs, self._signature)

    def _check_count(self, count: int) -> None:
        if count > self._most_rows:
            name = f" for '{self._model.name}'" if self._model.name else ""
            raise BatchTooLarge(f"The request has {count} rows; batch-size must be <= {self._most_rows}{name}.")

    def _instance(self, instance: object, options: Mapping[str, object]) -> Payload:
        return Payload(self._read_fields(instance), options)

    def _read_fields(self, instance: object) -> Mapping[str, object]:
        """Return a row's values by input; if one input is needed, an instance may be its bare value."""
        if isinstance(instance, dict):
            return self._check_names(instance)
        if len(self._needed) == 1:
            return {self._needed[0]: instance}
        raise InvalidBody(self._describe_forms())

    def _check_names(self, values: Mapping[str, object]) -> Mapping[str, object]:
        if not values:
            raise InvalidBody(self._describe_forms())
        if unknown := [name for name in values if name not in self._inputs]:
            raise InvalidBody(
                f"{show_name(unknown[0])}: the model has no such input; it has {', '.join(self._inputs)}."
            )
        return values

    def _describe_forms(self) -> str:
        fields = ", ".join(f'"{name}": ...' for name in self._needed)
        return f'JSON must be {{"instances": [{{{fields}}}, ...]}}, {{"inputs": {{{fields}}}}} or {{{fields}}}.'


def read_values(value: object, tensor: Tensor, *, is_row: bool) -> Array:
    """Read JSON as an array of DTYPES with the batch dimension and as many more as the tensor, still unchecked."""
    listed, types = to_objects(value)
    datatype = tensor.datatype or next((name for kind, name in GUESSED if kind in types), "FP64")
    dtype = DTYPES[datatype]
    listed, types = read_floats(listed, types, dtype.kind)
    expected = tensor.shape if not is_row or tensor.shape is None else remove_dimension(tensor.shape, tensor.batch_dim)
    if not types <= JSON_TYPES["f" if dtype == BF16 else dtype.kind]:
        raise TensorMismatch(f"{tensor.name}: {datatype} {_write_shape(expected)} is expected, nested as its shape is.")
    if expected is not None and len(listed.shape) != len(expected):
        raise TensorMismatch(
            f"{tensor.name}: {datatype} {_write_shape(expected)} is expected; {list(listed.shape)} was sent."
        )
    try:
        array = convert(listed, np.dtype(np.float32) if dtype == BF16 else dtype)
    except OverflowError:
        raise TensorMismatch(f"{tensor.name}: contains a value that {datatype} cannot represent.") from None
    if dtype == BF16:
        array = to_bfloat16(array)
    if not is_row:
        return array
    if tensor.batch_dim > array.ndim:
        raise TensorMismatch(f"{tensor.name}: a row needs at least {tensor.batch_dim} dimensions.")
    return np.expand_dims(array, tensor.batch_dim)


def _write_shape(shape: Shape | None) -> str:
    return "of any shape" if shape is None else str(list(shape))
