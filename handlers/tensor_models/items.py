"""How the requests of a model of tensors become rows. Pure.

    Open Inference tensors  -> checked -> a payload for each row
    {"inputs": {...}}       -> values -> checked -> the same
    {"instances": [...]}    -> a payload for each, whose values are read as it is decoded
    {"x": ..., ...}         -> one such payload

See handlers.protocol.requests.Items.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import BatchTooLarge, InvalidBody, ItemError, TensorMismatch, UnsupportedMedia, shown
from handlers.protocol.bodies import BodyInfo, check_count
from handlers.protocol.fields import instances_of
from handlers.protocol.output_tensors import Model
from handlers.protocol.requests import Payload, Request
from handlers.protocol.responses import Instances, OneItem
from handlers.protocol.tensors import BF16, DTYPES, JSON_TYPES, converted, nested, to_bfloat16
from handlers.tensor_models.answers import Columns, prediction, row_values
from handlers.tensor_models.checks import checked, row_count
from handlers.tensor_models.rows import Rows
from handlers.tensor_models.signature import GUESSED, Shape, Signature, Tensor, without


class TensorItems:
    """Reads requests by one signature."""

    def __init__(
        self,
        signature: Signature,
        rows: Rows,
        model: Model,
        *,
        given: Mapping[str, str],
        most_rows: int,
    ) -> None:
        """Read requests to one model.

        Args:
            signature, rows, model: of the model.
            given: the model's name of each input by the clients' name.
            most_rows: the most rows of one request.
        """
        self._signature, self._rows, self._model = signature, rows, model
        self._inputs = {name: signature.inputs[own] for name, own in given.items()}
        # The same under the names that clients use, for messages.
        self._named_so = {name: replace(tensor, name=name) for name, tensor in self._inputs.items()}
        self.given = {own: name for name, own in given.items()}
        self._needed = [name for name, own in given.items() if own not in signature.masks]
        self._most_rows = most_rows

    def of_tensors(
        self, tensors: Mapping[str, NDArray[Any]], options: Mapping[str, Any]
    ) -> tuple[Payload | ItemError, ...]:
        """All tensors together are wrong, or none."""
        arrays = checked(tensors, self._inputs, self._signature)
        count = row_count(arrays, self._signature)
        self._check_count(count)
        return tuple(Payload(row, options) for row in self._rows.apart(arrays, count))

    def of_body(self, body: bytes | bytearray | str, sent: BodyInfo) -> Request:  # noqa: ARG002
        """There is no other form than JSON."""
        raise UnsupportedMedia("The body is neither JSON nor an Open Inference request.")

    def of_json(self, document: Any, sent: BodyInfo) -> Request:
        if isinstance(document, dict) and "instances" in document:
            if isinstance(document["instances"], list):
                self._check_count(len(document["instances"]))
            form = Instances(partial(prediction, self._model))
            return instances_of(document, sent.options, self._most_rows, self._instance, form)
        if isinstance(document, dict) and isinstance(document.get("inputs"), dict):
            options = {**sent.options, **{name: document[name] for name in document if name != "inputs"}}
            check_count(options)
            columns = self._known(document["inputs"])
            arrays = {name: from_values(v, self._named_so[name], is_row=False) for name, v in columns.items()}
            return Request(self.of_tensors(arrays, options), Columns(self._model))
        if isinstance(document, dict):
            return Request((Payload(self._named(document), sent.options),), OneItem(partial(row_values, self._model)))
        raise InvalidBody(self._shapes())

    def decoded(self, payload: Payload) -> Mapping[str, NDArray[Any]]:
        """Return the checked arrays of one row.

        Raises:
            InvalidInput: JSON's values are not what the signature says.
        """
        values: Any = payload.value
        sample = next(iter(values.values()))
        if hasattr(sample, "dtype"):
            return values  # type: ignore[no-any-return]
        arrays = {name: from_values(value, self._named_so[name], is_row=True) for name, value in values.items()}
        return checked(arrays, self._inputs, self._signature)

    def _check_count(self, count: int) -> None:
        if count > self._most_rows:
            name = f" for '{self._model.name}'" if self._model.name else ""
            raise BatchTooLarge(f"The request has {count} rows; batch-size must be <= {self._most_rows}{name}.")

    def _instance(self, instance: Any, options: Mapping[str, Any]) -> Payload:
        return Payload(self._named(instance), options)

    def _named(self, instance: Any) -> Mapping[str, Any]:
        """Return a row's values by input; where one is needed, an instance may be its value itself."""
        if isinstance(instance, dict):
            return self._known(instance)
        if len(self._needed) == 1:
            return {self._needed[0]: instance}
        raise InvalidBody(self._shapes())

    def _known(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        if not values:
            raise InvalidBody(self._shapes())
        if unknown := [name for name in values if name not in self._inputs]:
            raise InvalidBody(f"{shown(unknown[0])}: the model has no such input; it has {', '.join(self._inputs)}.")
        return values

    def _shapes(self) -> str:
        fields = ", ".join(f'"{name}": ...' for name in self._needed)
        return f'JSON must be {{"instances": [{{{fields}}}, ...]}}, {{"inputs": {{{fields}}}}} or {{{fields}}}.'


def from_values(value: Any, tensor: Tensor, *, is_row: bool) -> NDArray[Any]:
    """Read what a JSON document holds for an input.

    Args:
        value: a number, a string, or lists of them, nested.
        tensor: what is expected. Where any datatype is, whole numbers are INT64, others FP64, strings BYTES.
        is_row: whether it is one row, without the batch dimension, or all of them.

    Returns:
        An array with the batch dimension, of a dtype of DTYPES; it has as many dimensions as the tensor, and is to be
        checked.

    Raises:
        TensorMismatch: it is no such value.
    """
    listed, types = nested(value)
    datatype = tensor.datatype or next((name for kind, name in GUESSED if kind in types), "FP64")
    dtype = DTYPES[datatype]
    expected = tensor.shape if not is_row or tensor.shape is None else without(tensor.shape, tensor.batch_dim)
    if not types <= JSON_TYPES["f" if dtype == BF16 else dtype.kind]:
        raise TensorMismatch(f"{tensor.name}: {datatype} {_listed(expected)} is expected, nested as its shape is.")
    if expected is not None and len(listed.shape) != len(expected):
        raise TensorMismatch(
            f"{tensor.name}: {datatype} {_listed(expected)} is expected; {list(listed.shape)} was sent."
        )
    try:
        array = converted(listed, np.dtype(np.float32) if dtype == BF16 else dtype)
    except OverflowError:
        raise TensorMismatch(f"{tensor.name}: there is a number that {datatype} has not.") from None
    if dtype == BF16:
        array = to_bfloat16(array)
    if not is_row:
        return array
    if tensor.batch_dim > array.ndim:
        raise TensorMismatch(f"{tensor.name}: a row needs at least {tensor.batch_dim} dimensions.")
    return np.expand_dims(array, tensor.batch_dim)


def _listed(shape: Shape | None) -> str:
    return "of any shape" if shape is None else str(list(shape))
