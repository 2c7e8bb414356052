"""Check the tensors of a request and the outputs of a run against the signature. Pure.

tensors of a request -> check_inputs  -> arrays by the model's names, all with one number of rows; or InvalidInput
outputs of a run     -> check_outputs -> arrays that fit the signature; or WrongOutput
"""

from collections.abc import Mapping, Sequence

import numpy as np

from handlers.aliases import Array
from handlers.errors import EmptyInput, InvalidBody, InvalidText, NonFiniteInput, TensorMismatch, WrongOutput, show_name
from handlers.protocol.output_tensors import ERROR, Arrays
from handlers.protocol.tensors import (
    BF16,
    DTYPES,
    datatype_of,
    encode_elements,
    from_bfloat16,
    make_objects,
    to_bfloat16,
)
from handlers.tensor_models.signature import Shape, Signature, Tensor, fits, remove_dimension

_STRINGS = "SU"  # kinds of numpy's strings, which a function may return for BYTES
_KNOWN = set(DTYPES.values())


def check_inputs(tensors: Arrays, inputs: Mapping[str, Tensor], signature: Signature) -> dict[str, Array]:
    """Return arrays of one row at least; BF16 as float32, BYTES as bytes, and without a mask that was not sent."""
    arrays = {}
    for name, array in tensors.items():
        tensor = inputs.get(name)
        if tensor is None:
            raise InvalidBody(f"{show_name(name)}: the model has no such input; it has {', '.join(inputs)}.")
        if not _matches(array, tensor):
            raise TensorMismatch(f"{name}: {tensor} is expected; {datatype_of(array)} {list(array.shape)} was sent.")
        if tensor.computes_in is not None:
            _check_range(name, array, tensor)
        arrays[tensor.name] = _decode_array(array, name)
    for name, tensor in inputs.items():
        if name not in tensors and tensor.name not in signature.masks:
            raise TensorMismatch(f"{name}: {tensor} is expected; nothing was sent.")
    _check_rows(arrays, inputs, signature)
    return arrays


def check_finite(arrays: Arrays, given: Mapping[str, str]) -> None:
    """Check that a row contains only numbers; `given` maps the model's name of an input to the clients'."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise NonFiniteInput(f"{given.get(name, name)}: contains NaN or infinity; allow_non_finite is false.")


def _check_range(name: str, array: Array, tensor: Tensor) -> None:
    bounds = np.iinfo(DTYPES[str(tensor.computes_in)].str)
    if array.size and (int(array.min()) < bounds.min or int(array.max()) > bounds.max):
        raise TensorMismatch(
            f"{name}: contains a value that {tensor.computes_in}, the engine's datatype, cannot represent."
        )


def _check_rows(arrays: Arrays, inputs: Mapping[str, Tensor], signature: Signature) -> None:
    """Check that all inputs have one number of rows, and a mask as many positions as its input."""
    sizes = {name: array.shape[signature.inputs[name].batch_dim] for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        given = {tensor.name: name for name, tensor in inputs.items()}
        listed = ", ".join(f"{given[name]} has {size}" for name, size in sizes.items())
        raise InvalidBody(f"All inputs must have the same number of rows; {listed}.")
    if 0 in sizes.values():
        raise EmptyInput("The tensors have no rows.")
    for mask, padded in signature.masks.items():
        if mask in arrays:
            wanted = free_sizes(arrays[padded].shape, signature.inputs[padded])
            if free_sizes(arrays[mask].shape, signature.inputs[mask]) != wanted:
                given = {tensor.name: name for name, tensor in inputs.items()}
                raise TensorMismatch(
                    f"{given[mask]}: {list(wanted)} positions a row are expected, as in {given[padded]}."
                )


def free_sizes(shape: Sequence[int], tensor: Tensor) -> Shape:
    return tuple(shape[dimension] for dimension in tensor.free)


def count_rows(arrays: Arrays, signature: Signature) -> int:
    name, array = next(iter(arrays.items()))
    return int(array.shape[signature.inputs[name].batch_dim])


def _matches(array: Array, tensor: Tensor) -> bool:
    if tensor.datatype is not None and array.dtype != DTYPES[tensor.datatype]:
        return False
    if tensor.shape is None:
        return array.ndim > tensor.batch_dim
    return fits(array.shape, tensor.shape)


def _decode_array(array: Array, place: str) -> Array:
    """Return BF16 as float32, and BYTES as bytes."""
    if array.dtype == BF16:
        return from_bfloat16(array)
    if array.dtype.kind == "O":
        try:
            return make_objects(encode_elements(array)).reshape(array.shape)
        except UnicodeEncodeError:
            raise InvalidText(f"{place}: contains an invalid Unicode code point, a lone surrogate.") from None
    return array


def check_outputs(
    outputs: object, signature: Mapping[str, Tensor] | None, rows: int, given: Mapping[str, str]
) -> Arrays:
    """Return an array of DTYPES for each output of a run; BF16 and BYTES as answers contain them."""
    if not isinstance(outputs, Mapping) or not outputs:
        raise WrongOutput(f"The model returned a {type(outputs).__name__}; arrays by name are expected.")
    if signature is None:
        signature = {_check_name(name): Tensor(name) for name in outputs}
    arrays = {}
    for name, tensor in signature.items():
        place = given.get(name, name)
        if name not in outputs:
            raise WrongOutput(f"{place}: the model did not return it.")
        arrays[name] = _check_output(outputs[name], tensor, rows, place)
    return arrays


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise WrongOutput(f"An output is named {name!r}; a text is expected.")
    if name == ERROR:
        raise WrongOutput(f"{name}: the name is reserved for the errors of rows.")
    return name


def _check_output(value: object, tensor: Tensor, rows: int, place: str) -> Array:
    if not isinstance(value, np.ndarray):
        raise WrongOutput(f"{place}: a {type(value).__name__} was returned; an array is expected.")
    array = _convert_output(value, tensor, place)
    at = tensor.batch_dim
    if array.ndim <= at or array.shape[at] != rows:
        came = array.shape[at] if array.ndim > at else "no"
        raise WrongOutput(f"{place}: {came} rows were returned for {rows}.")
    if tensor.datatype is not None and array.dtype != DTYPES[tensor.datatype]:
        raise WrongOutput(f"{place}: {datatype_of(array)} was returned; {tensor.datatype} is expected.")
    if tensor.shape is not None and not fits(array.shape, tensor.shape):
        came_shape, wanted = list(remove_dimension(array.shape, at)), list(remove_dimension(tensor.shape, at))
        raise WrongOutput(f"{place}: rows of {came_shape} were returned; {wanted} is expected.")
    return array


def _convert_output(array: Array, tensor: Tensor, place: str) -> Array:
    """Convert an array to a dtype that an answer can have."""
    kind = array.dtype.kind
    if tensor.datatype == "BF16" and array.dtype == np.float32:
        return to_bfloat16(array)
    if kind in _STRINGS:
        return array.astype(object)
    if kind == "O":
        if not all(isinstance(each, str | bytes) for each in array.ravel()):
            raise WrongOutput(f"{place}: objects other than str and bytes were returned.")
        return array
    little = array.dtype.newbyteorder("<")
    if little not in _KNOWN:
        raise WrongOutput(f"{place}: {array.dtype} was returned, which is not a datatype of the protocol.")
    return array.astype(little, copy=False)


def describe_outputs(arrays: Arrays) -> dict[str, Tensor]:
    """Describe the outputs of a function after a run: names and datatypes; sizes may depend on the request."""
    return {name: Tensor(name, datatype_of(array), (-1,) * array.ndim) for name, array in arrays.items()}
