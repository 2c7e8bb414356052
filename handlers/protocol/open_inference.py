"""Open Inference Protocol v2, which KServe, Triton and their clients speak: body -> tensors, results -> body. Pure.

    body -> split -> JSON document, binary tensors behind it
    both -> read  -> tensors by name, options of all items, and the Inference that packs the answer
    Inference + one result per item -> pack -> Reply, JSON or binary as the client asked

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol is the protocol; binary tensors are
Triton's extension of it. The first dimension of every tensor counts items. How tensors become items is not the
protocol's affair but that of handlers.protocol.requests.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handlers.errors import ItemError, MalformedTensor, UnknownShape, shown
from handlers.protocol import tensors
from handlers.protocol.output_tensors import Documents, OutputTensors, scattered
from handlers.protocol.responses import Reply, encode, encode_padded

# This header says how many bytes the JSON document has, where binary tensors follow it, in requests and answers alike.
LENGTH_HEADER = "Inference-Header-Content-Length"
BINARY_TYPE = "application/octet-stream"

# The output with the errors of the items; an answer has it when any item failed, or when the client asks for it.
ERROR = "error"

# These parameters say what the headers X-Priority and X-Timeout-Ms do; handlers.protocol.headers reads them.
TERMS = frozenset({"priority", "timeout"})
# These parameters are the protocol's own or Triton's scheduling's; all others are options of the task.
PROTOCOL_PARAMETERS = TERMS | {"binary_data_output", "sequence_id", "sequence_start", "sequence_end"}
TRITON_PREFIX = "triton_"


@dataclass(frozen=True, slots=True)
class Model:
    """What an answer says of the model.

    Attributes:
        name: the name under which it is registered.
        version: its version; None leaves it out of answers.
        outputs: how its results become tensors.
        batch_dims: the dimension of an output that counts rows, where it is not the first, by name.
    """

    name: str = ""
    version: str | None = None
    outputs: OutputTensors = field(default_factory=Documents)
    batch_dims: Mapping[str, int] = field(default_factory=dict)

    def arrays(self, results: Sequence[Any]) -> dict[str, NDArray[Any]]:
        """Make the outputs, by name: a row for every item, with nothing in it where the item failed.

        Args:
            results: one per item, at least one of them no error.
        """
        good = [result for result in results if not isinstance(result, ItemError)]
        arrays = dict(self.outputs.arrays(good))
        if len(good) == len(results):
            return arrays
        is_good = np.array([not isinstance(result, ItemError) for result in results])
        return {name: scattered(array, is_good, self.batch_dims.get(name, 0)) for name, array in arrays.items()}

    def output(self, name: str) -> str | None:
        """Find the output that a request asks for; where a model has one, clients call it what they like.

        Returns:
            Its name among `outputs`, or ERROR; None where there is no such output. Where the model's outputs are known
            only once it has run, any name is one until then.
        """
        if name in (*self.outputs.names, ERROR) or not self.outputs.names:
            return name
        return self.outputs.names[0] if len(self.outputs.names) == 1 else None


@dataclass(frozen=True, slots=True)
class Inference:
    """The form of an answer; see `handlers.protocol.responses.Form`.

    Attributes:
        model: the model whose outputs are asked for.
        id: the request's id, which the answer repeats; None where it has none.
        wanted: the names of the outputs, in the client's order, and whether each is binary; empty for all of them.
        is_binary: whether outputs that the client does not name are binary.
    """

    model: Model = field(default_factory=Model)
    id: str | None = None
    wanted: Mapping[str, bool] = field(default_factory=dict)
    is_binary: bool = False

    def pack(self, results: Sequence[Any]) -> Reply:
        """See `Form`. Every item has its row, with nothing in it where it failed; if all failed, {"error": ...}."""
        if error := shared_error(results):
            return Reply(error.code, encode({"error": error.message}))
        try:
            outputs = self.outputs(results)
        except UnknownShape as unknown:
            return Reply(unknown.code, encode({"error": str(unknown)}))
        return self._written(outputs)

    def outputs(self, results: Sequence[Any]) -> dict[str, tuple[NDArray[Any], bool]]:
        """Make the tensors that the client wants, in its order, by name; beside each, whether it is to be binary.

        Args:
            results: one per item, at least one of them no error.

        Raises:
            UnknownShape: the client names an output that the model turns out not to have.
        """
        arrays = self.model.arrays(results)
        wanted = dict(self.wanted) or dict.fromkeys(arrays, self.is_binary)
        if any(isinstance(result, ItemError) for result in results):
            wanted.setdefault(ERROR, self.is_binary)
        if ERROR in wanted:
            arrays[ERROR] = errors_of(results)
        sources = {name: self.model.output(name) or name for name in wanted}
        if unknown := [name for name, source in sources.items() if source not in arrays]:
            raise UnknownShape(_no_output(unknown[0], arrays))
        return {name: (arrays[sources[name]], is_binary) for name, is_binary in wanted.items()}

    def _written(self, arrays: Mapping[str, tuple[NDArray[Any], bool]]) -> Reply:
        document: dict[str, Any] = {"model_name": self.model.name}
        if self.model.version is not None:
            document["model_version"] = self.model.version
        if self.id is not None:
            document["id"] = self.id
        binary = [tensors.to_binary(array) for array, is_binary in arrays.values() if is_binary]
        sizes = iter(map(len, binary))
        document["outputs"] = [
            {
                "name": name,
                "datatype": tensors.datatype_of(array),
                "shape": list(array.shape),
                **_content(array, next(sizes) if is_binary else None),
            }
            for name, (array, is_binary) in arrays.items()
        ]
        written = encode_padded(document)
        if not binary:
            return Reply(200, written)
        return Reply(200, b"".join([written, *binary]), BINARY_TYPE, {LENGTH_HEADER: str(len(written))})


@dataclass(frozen=True, slots=True)
class Inquiry:
    """One request, read.

    Attributes:
        tensors: the inputs and options of each item, by name, in the client's order; at least one.
        parameters: the options of all items.
        form: how the answer is written.
        terms: those of TERMS that the client sent, unchecked.
    """

    tensors: Mapping[str, NDArray[Any]]
    parameters: Mapping[str, Any]
    form: Inference
    terms: Mapping[str, Any] = field(default_factory=dict)


def split(body: bytes | bytearray | str, header: str) -> tuple[memoryview, memoryview]:
    """Take the binary tensors off a body.

    Args:
        body: the request's body, as it was sent.
        header: the value of LENGTH_HEADER.

    Returns:
        The JSON document and the bytes behind it.

    Raises:
        MalformedTensor: the header's value is not a length within the body.
    """
    view = memoryview(body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body)
    is_number = header.isascii() and header.isdigit() and len(header) < 20
    if not is_number or int(header) > len(view):
        raise MalformedTensor(f"{LENGTH_HEADER} must be a number of bytes, no more than the body's {len(view)}.")
    return view[: int(header)], view[int(header) :]


def is_inference(document: Any) -> bool:
    """Whether a JSON document is one of this protocol's requests, well-formed or not."""
    return isinstance(document, Mapping) and isinstance(document.get("inputs"), list)


def read(document: Any, binary: memoryview, model: Model) -> Inquiry:
    """Read one request.

    Args:
        document: the parsed JSON.
        binary: the bytes behind it.
        model: the model that is asked.

    Raises:
        UnknownShape: a part of the document is not what the protocol says, or names an output that there is not.
        MalformedTensor: a tensor's data, datatype and shape do not agree.
    """
    if not is_inference(document) or not document["inputs"]:
        raise UnknownShape('"inputs" must be a list of tensors, at least one.')
    return inquiry(document, _tensors(document["inputs"], binary), model)


def inquiry(document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], model: Model) -> Inquiry:
    """Read what a request holds beside its inputs.

    Args:
        document: may have "id", "parameters" and "outputs".
        arrays: the inputs.
        model: the model that is asked.

    Raises:
        UnknownShape: see `read`.
    """
    request_id = document.get("id")
    if not isinstance(request_id, str | None) or not _is_writable(request_id or ""):
        raise UnknownShape('"id" must be a string, without lone surrogates.')
    parameters = _parameters(document)
    is_binary = _flag(parameters, "binary_data_output", default=False)
    wanted = _wanted(document.get("outputs"), model, is_binary)
    options, terms = {}, {}
    for name, value in parameters.items():
        if name in TERMS:
            terms[name] = value
        elif name not in PROTOCOL_PARAMETERS and not name.startswith(TRITON_PREFIX):
            options[name] = value
    return Inquiry(arrays, options, Inference(model, request_id, wanted, is_binary), terms)


def _tensors(inputs: Sequence[Any], binary: memoryview) -> dict[str, NDArray[Any]]:
    """Read the input tensors, by name; binary ones follow each other in the same order."""
    arrays: dict[str, NDArray[Any]] = {}
    for index, tensor in enumerate(inputs):
        place = f"Input {index}"
        try:
            name = _name(tensor)
            place += f", {shown(name)}"
            if name in arrays:
                raise MalformedTensor("there is one of that name already.")
            dtype, shape = tensors.read_dtype(tensor.get("datatype")), tensors.read_shape(tensor.get("shape"))
            size = _binary_size(_parameters(tensor), binary)
            if size is None:
                arrays[name] = tensors.from_json(dtype, shape, tensor.get("data"))
            else:
                arrays[name] = tensors.from_binary(dtype, shape, binary[:size])
                binary = binary[size:]
        except (MalformedTensor, UnknownShape) as error:
            raise type(error)(f"{place}: {error}") from None
    if binary:
        raise MalformedTensor(f"{len(binary)} bytes follow the last binary tensor.")
    return arrays


def _binary_size(parameters: Mapping[str, Any], binary: memoryview) -> int | None:
    """Say how many of the remaining bytes are the tensor's; None where it stands in the document."""
    if "binary_data_size" not in parameters or len(parameters) > 1:
        if any(name.startswith("shared_memory") for name in parameters):
            raise UnknownShape("shared memory is not supported.")
        if "binary_data_size" not in parameters:
            return None
    size = parameters["binary_data_size"]
    if type(size) is not int or not 0 <= size <= len(binary):
        raise MalformedTensor(
            f'"binary_data_size" must be a number of bytes; {len(binary)} are left of those behind the JSON document, '
            f"which ends where {LENGTH_HEADER} says."
        )
    return size


def _wanted(outputs: Any, model: Model, is_binary: bool) -> dict[str, bool]:
    """Read which outputs the client names, in its order, and whether each is binary."""
    if outputs is None:
        return {}
    if not isinstance(outputs, list):
        raise UnknownShape('"outputs" must be a list of {"name": ...}.')
    wanted: dict[str, bool] = {}
    for output in outputs:
        name, parameters = _name(output), _parameters(output)
        source = model.output(name)
        if source is None or not _is_writable(name):
            raise UnknownShape(_no_output(name, (*model.outputs.names, ERROR)))
        if any(model.output(other) == source for other in wanted if other != name):
            raise UnknownShape(f'"outputs" has two names for {source}.')
        for unsupported in ("classification", "shared_memory_region"):
            if unsupported in parameters:
                raise UnknownShape(f"Output {shown(name)}: {unsupported} is not supported.")
        wanted[name] = _flag(parameters, "binary_data", default=is_binary)
    return wanted


def _no_output(name: str, known: Iterable[str]) -> str:
    return f"{shown(name)}: the model has no such output; it has {', '.join(known)}."


def _is_writable(text: str) -> bool:
    """Whether an answer can repeat a text: TorchServe's own parser lets surrogates stand alone."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _name(tensor: Any) -> str:
    if not isinstance(tensor, Mapping) or not isinstance(tensor.get("name"), str):
        raise UnknownShape('a tensor must be an object with a "name".')
    return str(tensor["name"])


def _parameters(part: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = part.get("parameters")
    if not isinstance(parameters, Mapping | None):
        raise UnknownShape('"parameters" must be an object.')
    return parameters or {}


def _flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise UnknownShape(f'"{name}" must be true or false.')
    return value


def _content(array: NDArray[Any], binary_size: int | None) -> dict[str, Any]:
    if binary_size is None:
        return {"data": tensors.to_json(array)}
    return {"parameters": {"binary_data_size": binary_size}}


def shared_error(results: Sequence[Any]) -> ItemError | None:
    """Give the first error where every item failed; otherwise None, and the errors stand in the output ERROR."""
    for result in results:
        if not isinstance(result, ItemError):
            return None
    first: ItemError = results[0]
    return first


def errors_of(results: Sequence[Any]) -> NDArray[Any]:
    """Write each item's error as JSON, and "" for good items: (B,) objects."""
    return np.array([encode(r.to_json()) if isinstance(r, ItemError) else b"" for r in results], object)
