"""An input of any length as chunks of a size that a model takes, and their answers joined in order.

    inputs -> sizes -> cut -> ranges of items -> FuturesClient -> futures in order -> joined

Inputs are a list, an array, or a dict of arrays that agree on axis 0. Everything but ChunkingClient is pure.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from torchserve_client import protocol
from torchserve_client.client import Client
from torchserve_client.errors import ChunksFailed, ClientError, InvalidPayload
from torchserve_client.futures import FuturesClient

Inputs = Sequence[Any] | NDArray[Any] | Mapping[str, NDArray[Any]]

# The output tensor of this project's handlers that says which items failed: JSON, empty for those that did not.
ERROR = "error"
# The size of a chunk that no handler of this project refuses.
MAX_REQUEST_ITEMS = 64  # items: the smallest max_request_items
MAX_BYTES = (
    3 * 2**18
)  # three quarters of the smallest max_body_bytes, 1 MiB; the rest is for JSON's quotes and brackets


def cut(sizes: Sequence[int], max_items: int, max_bytes: int) -> list[range]:
    """Cut items into chunks, greedily and in order.

    Args:
        sizes: of each item, in bytes.
        max_items: most items of a chunk.
        max_bytes: most bytes that the items of a chunk take; an item that is larger goes alone.

    Returns:
        The range of each chunk's items.
    """
    chunks = []
    start = filled = 0
    for index, size in enumerate(sizes):
        if index > start and (filled + size > max_bytes or index - start == max_items):
            chunks.append(range(start, index))
            start, filled = index, 0
        filled += size
    return [*chunks, range(start, len(sizes))] if sizes else []


def length(inputs: Inputs) -> int:
    """Count the items of an input.

    Raises:
        InvalidPayload: the input is neither a list nor arrays that agree on their first dimension.
    """
    if isinstance(inputs, np.ndarray):
        inputs = {"the array": inputs}
    if not isinstance(inputs, Mapping):
        if isinstance(inputs, str | bytes) or not isinstance(inputs, Sequence):
            raise InvalidPayload(f"a list, an array or a dict of arrays can be cut, not {type(inputs).__name__}")
        return len(inputs)
    if not inputs or not all(isinstance(array, np.ndarray) for array in inputs.values()):
        raise InvalidPayload("a dict of arrays holds at least one, and nothing else")
    if flat := [name for name, array in inputs.items() if array.ndim == 0]:
        raise InvalidPayload(f"no first dimension to cut along: {', '.join(flat)}")
    counts = {name: len(array) for name, array in inputs.items()}
    if len(set(counts.values())) > 1:
        raise InvalidPayload(f"first dimensions differ: {', '.join(f'{k} has {v}' for k, v in counts.items())}")
    return next(iter(counts.values()))


def part(inputs: Inputs, items: range) -> Inputs:
    """Take the items of a range; of arrays, views."""
    if isinstance(inputs, Mapping):
        return {name: array[items.start : items.stop] for name, array in inputs.items()}
    return inputs[items.start : items.stop]


def sizes(inputs: Inputs) -> list[int]:
    """Estimate the bytes that each item takes as it is sent."""
    if isinstance(inputs, np.ndarray):
        inputs = {"": inputs}
    if isinstance(inputs, Mapping):
        rows = [_row_sizes(array) for array in inputs.values()]
        return [sum(of_item) for of_item in zip(*rows, strict=True)]
    return [_size(item) for item in inputs]


def _row_sizes(array: NDArray[Any]) -> list[int]:
    if protocol.datatype(array) != "BYTES":
        return [array[0].nbytes] * len(array) if len(array) else []
    return [sum(4 + len(element) for element in protocol.elements(np.atleast_1d(row))) for row in array]


def _size(item: Any) -> int:
    if isinstance(item, str):
        return len(item.encode())
    if isinstance(item, Mapping):
        return sum(len(str(name)) + _size(value) for name, value in item.items())
    if not isinstance(item, Path | bytes | bytearray | memoryview):
        return len(str(item))
    item_bytes = item.stat().st_size if isinstance(item, Path) else len(item)
    # Base64: four characters for three bytes.
    return -(-item_bytes // 3) * 4


def joined(parts: Sequence[Any]) -> Any:
    """Join the answers of successive chunks: lists one after the other, arrays along axis 0, dicts name by name.

    Raises:
        ValueError: the answers are of different kinds, or of one that cannot be joined.
    """
    if all(isinstance(each, list) for each in parts):
        return [item for each in parts for item in each]
    if all(isinstance(each, np.ndarray) for each in parts):
        return np.concatenate(parts)
    if all(isinstance(each, Mapping) for each in parts) and len({frozenset(each) for each in parts}) == 1:
        return {name: joined([each[name] for each in parts]) for name in parts[0]}
    raise ValueError(f"answers that cannot be joined: {', '.join(sorted({type(each).__name__ for each in parts}))}")


class ChunkingClient:
    """Sends inputs of any length to models that take few items at a time."""

    def __init__(
        self, client: Client, max_items: int | None = None, *, max_bytes: int = MAX_BYTES, max_workers: int = 4
    ) -> None:
        """Start nothing.

        Args:
            client: sends the chunks; an exception inside the `with` block closes it.
            max_items: most items of a chunk; None takes the model's batch_size, for which `client` needs a
                management_url, and 64 at most.
            max_bytes: most bytes that the items of a chunk take as they are sent; JSON's brackets and names come on
                top. An item that is larger goes alone.
            max_workers: most chunks that are at the server at a time.

        Raises:
            ValueError: a limit leaves no place for an item.
        """
        if max_bytes < 1 or (max_items is not None and max_items < 1):
            raise ValueError("a chunk holds at least one byte and one item")
        self._client = client
        self._max_items, self._max_bytes = max_items, max_bytes
        # The input is in memory anyway; a chunk is encoded when a thread sends it.
        self._futures = FuturesClient(client, max_workers, max_queue_items=2**31)
        # Of the models that were asked for it.
        self._batch_sizes: dict[str, int] = {}

    def submit(self, model: str, inputs: Inputs, **options: Any) -> "list[Future[Any]]":
        """Ask for every chunk in the background.

        Args:
            model: the model's name.
            inputs: a list, an array, or a dict of arrays that agree on axis 0.
            options: the same as those of `Client.predict`.

        Returns:
            A future for each chunk's answer, in order.

        Raises:
            InvalidPayload: the inputs cannot be cut; nothing was sent.
            ManagementError: the management API does not say the batch_size.
        """
        return list(self._submit(model, inputs, options).values())

    def infer_batch(self, model: str, inputs: Inputs, **options: Any) -> Any:
        """Ask for all chunks and join their answers; arguments are those of `submit`.

        Returns:
            One answer for the whole input: a list, or arrays along axis 0, of as many items as the input.

        Raises:
            InvalidPayload: the inputs cannot be cut; nothing was sent.
            ManagementError: the management API does not say the batch_size.
            ChunksFailed: some chunks failed; it holds their items, and the answers of the others.
        """
        futures = self._submit(model, inputs, options)
        results: dict[range, Any] = {}
        errors: dict[range, Exception] = {}
        for items, future in futures.items():
            try:
                results[items] = _checked(future.result(), items)
            except (ClientError, OSError, ValueError) as error:
                errors[items] = error
        if errors:
            raise ChunksFailed(errors, results)
        return joined(_with_errors(results))

    def _submit(self, model: str, inputs: Inputs, options: dict[str, Any]) -> "dict[range, Future[Any]]":
        if length(inputs) == 0 and isinstance(inputs, Mapping | np.ndarray):
            raise InvalidPayload("arrays of no items")
        chunks = cut(sizes(inputs), self._max_items or self._described(model), self._max_bytes)
        return {items: self._futures.submit(model, part(inputs, items), **options) for items in chunks}

    def _described(self, model: str) -> int:
        """Return how many items of a model go into a chunk; its batch_size is asked for once."""
        if model not in self._batch_sizes:
            batch_size = int(self._client.management.describe(model)["batchSize"])
            self._batch_sizes[model] = min(batch_size, MAX_REQUEST_ITEMS)
        return self._batch_sizes[model]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._futures.__exit__(kind, error, traceback)


def _with_errors(results: Mapping[range, Any]) -> list[Any]:
    """Add the tensor `error` to all answers if one has it; the server sends it for chunks with failed items only."""
    is_needed = any(isinstance(answer, Mapping) and ERROR in answer for answer in results.values())
    none = {items: np.full(len(items), b"", object) for items in results} if is_needed else {}
    return [{ERROR: none[items], **answer} if is_needed else answer for items, answer in results.items()]


def _checked(answer: Any, items: range) -> Any:
    """Return the answer if it has as many items as were sent; ValueError otherwise."""
    if isinstance(answer, list | np.ndarray | Mapping) and length(answer) == len(items):
        return answer
    raise ValueError(f"the answer to items {items.start}..{items.stop - 1} is not one of {len(items)} items")
