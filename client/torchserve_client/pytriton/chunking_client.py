"""ChunkingClient asks one model about any number of rows, as many at a time as it takes.

arrays by name -> chunking_strategy(arrays, max_batch_size) -> chunks -> FuturesModelClient -> futures, in order
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

from torchserve_client.pytriton import arguments
from torchserve_client.pytriton.arguments import Array, Arrays
from torchserve_client.pytriton.exceptions import PyTritonClientModelDoesntSupportBatchingError
from torchserve_client.pytriton.futures_client import FuturesModelClient
from torchserve_client.pytriton.model_client import Extras, check_extras

# Arrays by name and the model's max_batch_size -> smaller arrays by the same names, in order.
Strategy = Callable[[Arrays, int], Iterable[Arrays]]


def by_rows(inputs: Arrays, max_batch_size: int) -> Iterator[Arrays]:
    """Cut arrays along the first dimension, after every `max_batch_size` rows; the chunks are views."""
    for start in range(0, arguments.check_arrays(inputs), max_batch_size):
        yield {name: array[start : start + max_batch_size] for name, array in inputs.items()}


class ChunkingClient(FuturesModelClient):
    """Asks a model in the background, in as many requests as an input needs."""

    def __init__(
        self,
        url: str,
        model_name: str,
        chunking_strategy: Strategy | None = None,
        *,
        model_version: str | None = None,
        max_workers: int | None = 128,
        max_queue_size: int | None = 128,
        non_blocking: bool = False,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        access_token: str | None = None,
    ) -> None:
        """Address a model; nothing is sent yet.

        Args:
            chunking_strategy: called with the arrays by name and the model's max_batch_size, yields smaller arrays by
                name, in order; None cuts along the first dimension.
            url, model_name, model_version, max_workers, max_queue_size, non_blocking, init_timeout_s,
                inference_timeout_s, access_token: see `FuturesModelClient`.

        Raises:
            PyTritonClientInvalidUrlError, ValueError: see `FuturesModelClient`.
        """
        super().__init__(
            url,
            model_name,
            model_version,
            max_workers=max_workers,
            max_queue_size=max_queue_size,
            non_blocking=non_blocking,
            init_timeout_s=init_timeout_s,
            inference_timeout_s=inference_timeout_s,
            access_token=access_token,
        )
        self.chunking_strategy: Strategy = chunking_strategy or by_rows

    # PyTriton's own subclass of this name gives futures, and not one, too.
    def infer_batch(  # type: ignore[override]
        self,
        *inputs: Array,
        parameters: Extras | None = None,
        headers: Extras | None = None,
        **named_inputs: Array,
    ) -> "Iterator[Future[Arrays]]":
        """Ask about all rows in the background; the model is waited for, since it says how many it takes.

        Args:
            inputs, parameters, headers, named_inputs: see `ModelClient.infer_batch`.

        Returns:
            The futures of the chunks, in order: all of them are under way.

        Raises:
            PyTritonClientValueError: no arrays, some by position and others by name, or the arrays or those of a chunk
                have different numbers of rows; nothing was sent.
            TypeError: one is no array of numpy; nothing was sent.
            PyTritonClientError: the model does not say what it takes; see `ModelClient.model_config`.
        """
        arguments.check_given(inputs, named_inputs, is_batch=True)
        check_extras(parameters, headers)
        config = self._model.model_config
        if config.max_batch_size < 1:
            raise PyTritonClientModelDoesntSupportBatchingError(f"{config.model_name}: this model takes single samples")
        arrays = arguments.by_name(inputs, named_inputs, config.inputs)
        chunks = [dict(chunk) for chunk in self.chunking_strategy(arrays, config.max_batch_size)]
        for chunk in chunks:
            arguments.check_arrays(chunk)
        ask = super().infer_batch
        return iter([ask(parameters=parameters, headers=headers, **chunk) for chunk in chunks])
