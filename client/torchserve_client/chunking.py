"""Split an input of any length into chunks that a model accepts, and join their results in order.

    inputs -> estimate_sizes -> cut -> ranges of items -> FuturesClient -> futures in order -> join

Inputs are a list, an array, or a dict of arrays with equal lengths. All functions are pure.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import numpy as np

from torchserve_client import protocol
from torchserve_client.client import Client
from torchserve_client.errors import ChunksFailed, ClientError, InvalidPayload, Rejected, ServerFailed
from torchserve_client.futures import FuturesClient
from torchserve_client.protocol import Array

Inputs = Sequence[Any] | Array | Mapping[str, Array]

ERROR = "error"  # the output tensor of this project's handlers for errors of items: JSON, empty for successful items
MAX_REQUEST_ITEMS = 64  # items that every handler of this project accepts: the smallest max_request_items
# Bytes that every handler accepts: three quarters of the smallest max_body_bytes, 1 MiB; JSON's punctuation adds some.
MAX_BYTES = 3 * 2**18


def cut(sizes: Sequence[int], max_items: int, max_bytes: int) -> list[range]:
    """Cut items of these sizes in bytes into chunks, greedily and in order; a larger item is a separate chunk."""
    chunks = []
    start = filled = 0
    for index, size in enumerate(sizes):
        if index > start and (filled + size > max_bytes or index - start == max_items):
            chunks.append(range(start, index))
            start, filled = index, 0
        filled += size
    return [*chunks, range(start, len(sizes))] if sizes else []


def count_items(inputs: Inputs) -> int:
    """Count the items of an input; raise InvalidPayload if it cannot be cut."""
    if isinstance(inputs, np.ndarray):
        inputs = {"the array": inputs}
    if not isinstance(inputs, Mapping):
        if isinstance(inputs, str | bytes) or not isinstance(inputs, Sequence):
            raise InvalidPayload(f"chunks need a list, an array or a dict of arrays, not {type(inputs).__name__}")
        return len(inputs)
    if not inputs or not all(isinstance(array, np.ndarray) for array in inputs.values()):
        raise InvalidPayload("a dict of arrays must contain at least one, and nothing else")
    if flat := [name for name, array in inputs.items() if array.ndim == 0]:
        raise InvalidPayload(f"arrays without a first dimension: {', '.join(flat)}")
    counts = {name: len(array) for name, array in inputs.items()}
    if len(set(counts.values())) > 1:
        raise InvalidPayload(f"first dimensions differ: {', '.join(f'{k} has {v}' for k, v in counts.items())}")
    return next(iter(counts.values()))


def select(inputs: Inputs, items: range) -> Inputs:
    if isinstance(inputs, Mapping):
        return {name: array[items.start : items.stop] for name, array in inputs.items()}
    return inputs[items.start : items.stop]


def estimate_sizes(inputs: Inputs) -> list[int]:
    if isinstance(inputs, np.ndarray):
        inputs = {"": inputs}
    if isinstance(inputs, Mapping):
        rows = [_row_sizes(array) for array in inputs.values()]
        return [sum(of_item) for of_item in zip(*rows, strict=True)]
    return [_size(item) for item in inputs]


def _row_sizes(array: Array) -> list[int]:
    if protocol.datatype(array) != "BYTES":
        return [array[0].nbytes] * len(array) if len(array) else []
    return [sum(4 + len(element) for element in protocol.elements(np.atleast_1d(row))) for row in array]


def _size(item: object) -> int:
    if isinstance(item, str):
        return len(item.encode())
    if isinstance(item, Mapping):
        return sum(len(str(name)) + _size(value) for name, value in item.items())
    if not isinstance(item, Path | bytes | bytearray | memoryview):
        return len(str(item))
    item_bytes = item.stat().st_size if isinstance(item, Path) else len(item)
    return -(-item_bytes // 3) * 4  # Base64: four characters for three bytes


def join(parts: Sequence[Any]) -> Any:
    """Join the results of successive chunks: concatenate lists, and arrays along axis 0; join dicts name by name."""
    if all(isinstance(each, list) for each in parts):
        return [item for each in parts for item in each]
    if all(isinstance(each, np.ndarray) for each in parts):
        return np.concatenate(parts)
    if all(isinstance(each, Mapping) for each in parts) and len({frozenset(each) for each in parts}) == 1:
        return {name: join([each[name] for each in parts]) for name in parts[0]}
    raise ValueError(f"results that cannot be joined: {', '.join(sorted({type(each).__name__ for each in parts}))}")


class ChunkingClient:
    """Requests predictions for inputs of any length, in chunks that a model accepts."""

    def __init__(
        self, client: Client, max_items: int | None = None, *, max_bytes: int = MAX_BYTES, max_workers: int = 4
    ) -> None:
        """Prepare the threads; the first call starts them.

        Args:
            client: sends the chunks; an exception inside the `with` block closes it.
            max_items: most items per chunk; None means the most rows that the model accepts, at most 64. For a model
                that does not report them, it is the batch_size, which needs a `client` with a management_url.
            max_bytes: most bytes of the items of a chunk in a request, without JSON's punctuation and names. A larger
                item is a separate chunk.
            max_workers: most chunks at the server at a time.

        Raises:
            ValueError: a limit is below 1.
        """
        if max_bytes < 1 or (max_items is not None and max_items < 1):
            raise ValueError(f"max_items and max_bytes must be at least 1, not {max_items} and {max_bytes}")
        self._client = client
        self._max_items, self._max_bytes = max_items, max_bytes
        # The input is in memory anyway; a chunk is encoded when a thread sends it.
        self._futures = FuturesClient(client, max_workers, max_queue_items=2**31)
        self._chunk_items: dict[str, int] = {}  # model -> items per chunk

    def submit(self, model: str, inputs: Inputs, **options: object) -> "list[Future[Any]]":
        """Request predictions for every chunk in the background.

        Args:
            model: the model's name.
            inputs: a list, an array, or a dict of arrays with equal lengths.
            options: as in `Client.predict`.

        Returns:
            A future for the result of each chunk, in order.

        Raises:
            InvalidPayload: the inputs cannot be cut; nothing was sent.
            ManagementError: the management API does not report the batch_size.
        """
        return list(self._submit(model, inputs, options).values())

    def infer_batch(self, model: str, inputs: Inputs, **options: Any) -> Any:
        """Request predictions for all chunks and join the results.

        Args:
            model, inputs, options: as in `submit`.

        Returns:
            One result for the whole input: a list or arrays with as many items as the input.

        Raises:
            InvalidPayload: the inputs cannot be cut; nothing was sent.
            ManagementError: the management API does not report the batch_size.
            ChunksFailed: some chunks failed; the exception has their errors and the results of the others.
        """
        futures = self._submit(model, inputs, options)
        results: dict[range, Any] = {}
        errors: dict[range, Exception] = {}
        for items, future in futures.items():
            try:
                results[items] = _check(future.result(), items)
            except (ClientError, OSError, ValueError) as error:
                errors[items] = error
        if errors:
            raise ChunksFailed(errors, results)
        return join(_add_errors(results))

    def _submit(self, model: str, inputs: Inputs, options: dict[str, object]) -> "dict[range, Future[Any]]":
        if count_items(inputs) == 0 and isinstance(inputs, Mapping | np.ndarray):
            raise InvalidPayload("the arrays contain no items")
        chunks = cut(estimate_sizes(inputs), self._max_items or self._read_chunk_items(model), self._max_bytes)
        return {items: self._futures.submit(model, select(inputs, items), **options) for items in chunks}

    def _read_chunk_items(self, model: str) -> int:
        """Return the most items of a model's chunks; request its metadata, or else its batch_size, once."""
        if model not in self._chunk_items:
            try:
                most = self._client.metadata(model).max_batch_size
            except (Rejected, ServerFailed):
                most = 0
            most = most or int(self._client.management.describe(model)["batchSize"])
            self._chunk_items[model] = min(most, MAX_REQUEST_ITEMS)
        return self._chunk_items[model]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._futures.__exit__(kind)


def _add_errors(results: Mapping[range, Any]) -> list[object]:
    """Add the tensor `error` to all results if one has it; the server sends it only for chunks with failed items."""
    is_needed = any(isinstance(answer, Mapping) and ERROR in answer for answer in results.values())
    none = {items: np.full(len(items), b"", object) for items in results} if is_needed else {}
    return [{ERROR: none[items], **answer} if is_needed else answer for items, answer in results.items()]


def _check(result: object, items: range) -> object:
    """Return the result if it has an item for each item sent; raise ValueError otherwise."""
    if isinstance(result, list | np.ndarray | Mapping) and count_items(result) == len(items):
        return result
    raise ValueError(f"the response to items {items.start}..{items.stop - 1} does not have {len(items)} items")
