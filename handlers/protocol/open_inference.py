"""The Open Inference Protocol v2 of KServe, Triton and their clients: body -> tensors, results -> body. Pure.

    body -> split -> JSON document, binary tensors behind it
    both -> read_json -> read -> InferRequest: tensors by name, options of all items, and an Inference
    Inference + one result per item -> pack -> Response, JSON or binary as the client asked

`read` and `Inference` are the protocol; handlers.protocol.grpc_inference uses them for gRPC's messages. The protocol is
https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol, and binary tensors are Triton's
extension. The first dimension of every tensor counts items.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from handlers.aliases import Array, DType, Json
from handlers.errors import InvalidBody, ItemError, MalformedTensor, show_name
from handlers.protocol import tensors
from handlers.protocol.bodies import is_inference
from handlers.protocol.output_tensors import ERROR, Model, errors_of
from handlers.protocol.responses import Response, encode, encode_padded
from handlers.protocol.wire import BINARY, LENGTH_HEADER, MESSAGE_FIELDS

# Parameters with the meaning of the headers X-Priority and X-Timeout-Ms; handlers.protocol.requests reads them.
TERMS_PARAMETERS = frozenset({"priority", "timeout"})
# Parameters of the protocol and of Triton's scheduler, and the two that MLServer's clients always send. All others are
# options of the task.
PROTOCOL_PARAMETERS = TERMS_PARAMETERS | {"binary_data_output", "content_type", "headers"}
PROTOCOL_PARAMETERS |= {"sequence_id", "sequence_start", "sequence_end"}
TRITON_PREFIX = "triton_"

# The position of a tensor among the inputs, the tensor as sent, its dtype and shape -> its data as an array.
ReadData = Callable[[int, Mapping[str, Any], DType, tuple[int, ...]], Array]


@dataclass(frozen=True, slots=True)
class Inference:
    """The answer with output tensors, which have a row for every item; the row of a failed item is empty."""

    model: Model = field(default_factory=Model)
    id: str | None = None
    # The outputs in the client's order, and whether each is binary; if it is empty, all outputs by `is_binary`.
    wanted: Mapping[str, bool] = field(default_factory=dict)
    is_binary: bool = False

    def pack(self, results: Sequence[Any]) -> Response:
        if all(isinstance(result, ItemError) for result in results):
            return self._failed(results[0])
        try:
            outputs = self._outputs(results)
        except InvalidBody as unknown:
            return self._failed(ItemError.of(unknown))
        return self._write(outputs)

    def _outputs(self, results: Sequence[object]) -> dict[str, tuple[Array, bool]]:
        """Return the tensors that the client wants, in its order, by name, and whether each is binary."""
        arrays = self.model.arrays(results)
        wanted = dict(self.wanted) or dict.fromkeys(arrays, self.is_binary)
        if any(isinstance(result, ItemError) for result in results):
            wanted.setdefault(ERROR, self.is_binary)
        if ERROR in wanted:
            arrays[ERROR] = errors_of(results)
        sources = {name: self.model.output(name) or name for name in wanted}
        if unknown := [name for name, source in sources.items() if source not in arrays]:
            raise InvalidBody(_no_output(unknown[0], arrays))
        return {name: (arrays[sources[name]], is_binary) for name, is_binary in wanted.items()}

    def _failed(self, error: ItemError) -> Response:
        """Write the error of a request without any result."""
        return Response(error.code, encode({"error": error.message}))

    def _write(self, arrays: Mapping[str, tuple[Array, bool]]) -> Response:
        document: Json = {"model_name": self.model.name}
        if self.model.version is not None:
            document["model_version"] = self.model.version
        if self.id is not None:
            document["id"] = self.id
        document["outputs"], binary = [], []
        for name, (array, is_binary) in arrays.items():
            content: Json
            if is_binary:
                binary.append(tensors.to_binary(array))
                content = {"parameters": {"binary_data_size": len(binary[-1])}}
            else:
                content = {"data": tensors.to_json(array)}
            head = {"name": name, "datatype": tensors.datatype_of(array), "shape": list(array.shape)}
            document["outputs"].append({**head, **content})
        written = encode_padded(document)
        if not binary:
            return Response(200, written)
        return Response(200, b"".join([written, *binary]), BINARY, {LENGTH_HEADER: str(len(written))})


@dataclass(frozen=True, slots=True)
class InferRequest:
    tensors: Mapping[str, Array]
    parameters: Mapping[str, Any]  # the options of all items
    form: Inference
    terms: Mapping[str, object] = field(default_factory=dict)  # TERMS_PARAMETERS that the client sent, unchecked


def split(body: bytes | bytearray | str, header: str) -> tuple[memoryview, memoryview]:
    """Separate the JSON document of a body from the binary tensors behind it; `header` is LENGTH_HEADER's value."""
    view = memoryview(body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body)
    is_number = header.isascii() and header.isdigit() and len(header) < 20
    if not is_number or int(header) > len(view):
        raise MalformedTensor(f"{LENGTH_HEADER} must be a number of bytes, at most {len(view)}, the body's.")
    return view[: int(header)], view[int(header) :]


def read_json(document: object, binary: memoryview, model: Model) -> InferRequest:
    """Read a request from the parsed JSON document and the bytes behind it."""
    left = binary

    def data(_: int, tensor: Mapping[str, object], dtype: DType, shape: tuple[int, ...]) -> Array:
        nonlocal left
        if "binary_data_size" not in (parameters := _parameters(tensor)):
            return tensors.from_json(dtype, shape, tensor.get("data"))
        size = parameters["binary_data_size"]
        if type(size) is not int or not 0 <= size <= len(left):
            raise MalformedTensor(
                f'"binary_data_size" must be a number of bytes, at most {len(left)}, which are left behind the JSON '
                f"document; {LENGTH_HEADER} is the document's length."
            )
        own, left = left[:size], left[size:]
        return tensors.from_binary(dtype, shape, own)

    request = read(document, data, Inference, model)
    if left:
        raise MalformedTensor(f"{len(left)} bytes follow the last binary tensor.")
    return request


def read(document: Any, read_data: ReadData, form: type[Inference], model: Model) -> InferRequest:
    if not is_inference(document) or not document["inputs"]:
        raise InvalidBody('"inputs" must be a list of tensors, at least one.')
    if len(document["inputs"]) > MESSAGE_FIELDS:
        raise InvalidBody(f'"inputs" has more than {MESSAGE_FIELDS} tensors.')
    arrays: dict[str, Array] = {}
    for index, tensor in enumerate(document["inputs"]):
        place = f"Input {index}"
        try:
            name = _name(tensor)
            place += f", {show_name(name)}"
            if name in arrays:
                raise MalformedTensor("two inputs have this name.")
            dtype, shape = tensors.read_dtype(tensor.get("datatype")), tensors.read_shape(tensor.get("shape"))
            if any(each.startswith("shared_memory") for each in _parameters(tensor)):
                raise InvalidBody("shared memory is not supported.")
            arrays[name] = read_data(index, tensor, dtype, shape)
        except (MalformedTensor, InvalidBody) as error:
            raise type(error)(f"{place}: {error}") from None
    request_id = document.get("id")
    if not isinstance(request_id, str | None) or not _is_writable(request_id or ""):
        raise InvalidBody('"id" must be a string, without lone surrogates.')
    parameters = _parameters(document)
    is_binary = _flag(parameters, "binary_data_output", default=False)
    wanted = _read_outputs(document.get("outputs"), model, is_binary)
    own = {name for name in parameters if name in PROTOCOL_PARAMETERS or name.startswith(TRITON_PREFIX)}
    return InferRequest(
        arrays,
        {name: value for name, value in parameters.items() if name not in own},
        form(model, request_id, wanted, is_binary),
        {name: parameters[name] for name in parameters if name in TERMS_PARAMETERS},
    )


def _read_outputs(outputs: object, model: Model, is_binary: bool) -> dict[str, bool]:
    """Return the outputs that the client names, in its order, and whether each is binary."""
    if outputs is None:
        return {}
    if not isinstance(outputs, list):
        raise InvalidBody('"outputs" must be a list of {"name": ...}.')
    wanted: dict[str, bool] = {}
    sources: dict[str, str] = {}
    for output in outputs:
        name, parameters = _name(output), _parameters(output)
        source = model.output(name)
        if source is None or not _is_writable(name):
            raise InvalidBody(_no_output(name, (*model.outputs.names, ERROR)))
        if sources.setdefault(source, name) != name:
            raise InvalidBody(f'"outputs" has two names for {source}.')
        for unsupported in ("classification", "shared_memory_region"):
            if unsupported in parameters:
                raise InvalidBody(f"Output {show_name(name)}: {unsupported} is not supported.")
        wanted[name] = _flag(parameters, "binary_data", default=is_binary)
    return wanted


def _no_output(name: str, known: Iterable[str]) -> str:
    return f"{show_name(name)}: not an output of the model; its outputs are {', '.join(known)}."


def _is_writable(text: str) -> bool:
    """Whether an answer can contain a text: TorchServe's own parser accepts lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _name(tensor: object) -> str:
    if not isinstance(tensor, Mapping) or not isinstance(tensor.get("name"), str):
        raise InvalidBody('a tensor must be an object with a "name".')
    return str(tensor["name"])


def _parameters(part: Mapping[str, object]) -> Mapping[str, object]:
    parameters = part.get("parameters")
    if not isinstance(parameters, Mapping | None):
        raise InvalidBody('"parameters" must be an object.')
    return parameters or {}


def _flag(parameters: Mapping[str, object], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidBody(f'"{name}" must be true or false.')
    return value
