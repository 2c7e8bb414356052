"""Open Inference Protocol v2, which KServe, Triton and their clients speak: body -> tensors, results -> body. Pure.

    body -> split -> JSON document, binary tensors behind it
    both -> read  -> InferRequest: tensors by name, options of all items, and the Inference that packs the answer
    Inference + one result per item -> pack -> Reply, JSON or binary as the client asked

`read_inputs`, `infer_request` and `Inference` are the protocol itself; handlers.protocol.grpc_inference reads and
writes the same as gRPC's messages. https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol
is the protocol; binary tensors are Triton's extension of it. The first dimension of every tensor counts items. How
tensors become items is decided in handlers.protocol.requests.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from handlers.errors import ItemError, MalformedTensor, UnknownShape, shown
from handlers.protocol import tensors
from handlers.protocol.output_tensors import ERROR, Model, errors_of
from handlers.protocol.responses import Reply, encode, encode_padded

# This header says how many bytes the JSON document has, where binary tensors follow it, in requests and answers alike.
LENGTH_HEADER = "Inference-Header-Content-Length"
BINARY_TYPE = "application/octet-stream"

# These parameters say what the headers X-Priority and X-Timeout-Ms do; handlers.protocol.headers reads them.
TERMS = frozenset({"priority", "timeout"})
# These parameters are the protocol's own or Triton's scheduling's; all others are options of the task.
PROTOCOL_PARAMETERS = TERMS | {"binary_data_output", "sequence_id", "sequence_start", "sequence_end"}
TRITON_PREFIX = "triton_"


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
        if all(isinstance(result, ItemError) for result in results):
            return self._failed(results[0])
        try:
            outputs = self._outputs(results)
        except UnknownShape as unknown:
            return self._failed(ItemError.of(unknown))
        return self._written(outputs)

    def _outputs(self, results: Sequence[Any]) -> dict[str, tuple[NDArray[Any], bool]]:
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

    def _failed(self, error: ItemError) -> Reply:
        """Write the error of a request that has no result."""
        return Reply(error.code, encode({"error": error.message}))

    def _written(self, arrays: Mapping[str, tuple[NDArray[Any], bool]]) -> Reply:
        """Write the outputs, by name; beside each, whether it is to be binary."""
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
class InferRequest:
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


def read(document: Any, binary: memoryview, model: Model) -> InferRequest:
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
    left = _Binary(binary)
    arrays = read_inputs(document["inputs"], _name, lambda tensor: _tensor(tensor, left))
    if left.bytes:
        raise MalformedTensor(f"{len(left.bytes)} bytes follow the last binary tensor.")
    return infer_request(document, arrays, Inference, model)


def read_inputs(
    inputs: Iterable[Any], name_of: Callable[[Any], str], read_tensor: Callable[[Any], NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Read the input tensors, by name.

    Args:
        inputs: as they were sent, in their order.
        name_of: finds the name of one of them.
        read_tensor: reads one; called once for each, in their order.

    Raises:
        UnknownShape, MalformedTensor: one is wrong; the message says which.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for index, tensor in enumerate(inputs):
        place = f"Input {index}"
        try:
            name = name_of(tensor)
            place += f", {shown(name)}"
            if name in arrays:
                raise MalformedTensor("there is one of that name already.")
            arrays[name] = read_tensor(tensor)
        except (MalformedTensor, UnknownShape) as error:
            raise type(error)(f"{place}: {error}") from None
    return arrays


def infer_request(
    document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], form: type[Inference], model: Model
) -> InferRequest:
    """Read what a request holds beside its inputs.

    Args:
        document: may have "id", "parameters" and "outputs".
        arrays: the inputs.
        form: how the answer is to be written.
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
    return InferRequest(arrays, options, form(model, request_id, wanted, is_binary), terms)


@dataclass(slots=True)
class _Binary:
    """The bytes behind the JSON document that no tensor has taken yet."""

    bytes: memoryview

    def take(self, size: Any) -> memoryview:
        """Take the next tensor's.

        Raises:
            MalformedTensor: the size is no number, or there are not so many.
        """
        if type(size) is not int or not 0 <= size <= len(self.bytes):
            raise MalformedTensor(
                f'"binary_data_size" must be a number of bytes; {len(self.bytes)} are left of those behind the JSON '
                f"document, which ends where {LENGTH_HEADER} says."
            )
        taken, self.bytes = self.bytes[:size], self.bytes[size:]
        return taken


def _tensor(tensor: Mapping[str, Any], left: _Binary) -> NDArray[Any]:
    dtype, shape = tensors.read_dtype(tensor.get("datatype")), tensors.read_shape(tensor.get("shape"))
    parameters = _parameters(tensor)
    check_no_shared_memory(parameters)
    if "binary_data_size" not in parameters:
        return tensors.from_json(dtype, shape, tensor.get("data"))
    return tensors.from_binary(dtype, shape, left.take(parameters["binary_data_size"]))


def check_no_shared_memory(parameters: Iterable[str]) -> None:
    """Refuse a tensor whose parameters say that it lies in memory of its client's.

    Raises:
        UnknownShape: they do.
    """
    if any(name.startswith("shared_memory") for name in parameters):
        raise UnknownShape("shared memory is not supported.")


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
