"""FuturesModelClient asks one model, many requests at once, each of which is a future.

call -> checked -> a place in flight (waited for, or refused) -> thread -> ModelClient -> Future
"""

from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar

from torchserve_client.futures import BoundedPool
from torchserve_client.pytriton import arguments
from torchserve_client.pytriton.arguments import Array, Arrays
from torchserve_client.pytriton.exceptions import translated
from torchserve_client.pytriton.model_client import Extras, ModelClient, check_extras
from torchserve_client.pytriton.model_config import TritonModelConfig

T = TypeVar("T")

# What stands for no limit: more than a machine has threads, or a program requests.
UNLIMITED = 2**31


class FuturesModelClient:
    """Asks a model in the background, a bounded number of requests at a time."""

    def __init__(
        self,
        url: str,
        model_name: str,
        model_version: str | None = None,
        *,
        max_workers: int | None = 128,
        max_queue_size: int | None = 128,
        non_blocking: bool = False,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        access_token: str | None = None,
    ) -> None:
        """Address a model; no thread is started and nothing is sent yet.

        Args:
            url, model_name, model_version, init_timeout_s, access_token: see `ModelClient`.
            max_workers: most requests that are at the server at a time; None means no limit.
            max_queue_size: most requests that wait here until one of those is answered; None means no limit.
            non_blocking: whether a request beyond both is refused at once, and not waited with.
            inference_timeout_s: deadline of a request, as of `ModelClient`; where it is given, also the most seconds
                to wait for a place.

        Raises:
            PyTritonClientInvalidUrlError: the address is none, or one of gRPC.
            ValueError: a limit leaves no place.
        """
        if any(limit is not None and limit < 1 for limit in (max_workers, max_queue_size)):
            raise ValueError("max_workers and max_queue_size must be at least 1")
        self._model = ModelClient(
            url,
            model_name,
            model_version,
            init_timeout_s=init_timeout_s,
            inference_timeout_s=inference_timeout_s,
            access_token=access_token,
        )
        self._pool = BoundedPool(max_workers or UNLIMITED, max_queue_size or UNLIMITED)
        self._place_s = 0.0 if non_blocking else inference_timeout_s

    def infer_sample(
        self,
        *inputs: Array,
        parameters: Extras | None = None,
        headers: Extras | None = None,
        **named_inputs: Array,
    ) -> "Future[Arrays]":
        """Ask about one sample in the background.

        Args:
            inputs, parameters, headers, named_inputs: see `ModelClient.infer_sample`.

        Returns:
            A future with what `ModelClient.infer_sample` returns or raises.

        Raises:
            PyTritonClientValueError, TypeError: what `ModelClient.infer_sample` would not send is refused at once.
            PyTritonClientQueueFullError: there is no place for it.
            PyTritonClientClosedError: the client is closed.
        """
        arguments.check_given(inputs, named_inputs, is_batch=False)
        check_extras(parameters, headers)
        model = self._model
        return self._submit(lambda: model.infer_sample(*inputs, parameters=parameters, headers=headers, **named_inputs))

    def infer_batch(
        self,
        *inputs: Array,
        parameters: Extras | None = None,
        headers: Extras | None = None,
        **named_inputs: Array,
    ) -> "Future[Arrays]":
        """Ask about several rows in the background; all is as of `infer_sample` and `ModelClient.infer_batch`."""
        arguments.check_given(inputs, named_inputs, is_batch=True)
        check_extras(parameters, headers)
        model = self._model
        return self._submit(lambda: model.infer_batch(*inputs, parameters=parameters, headers=headers, **named_inputs))

    def model_config(self) -> "Future[TritonModelConfig]":
        """Give a future with what the model takes and gives; see `ModelClient.model_config`."""
        return self._submit(lambda: self._model.model_config)

    def wait_for_model(self, timeout_s: float) -> "Future[None]":
        """Give a future that is done once the model is ready; see `ModelClient.wait_for_model`."""
        return self._submit(lambda: self._model.wait_for_model(timeout_s))

    def close(self, wait: bool = True) -> None:
        """Take no more requests.

        Args:
            wait: whether those that were made are waited for; otherwise they end in the background.
        """
        self._pool.close(wait=wait)
        if wait:
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for all requests; after an exception, cancel those that have not begun and cut the others."""
        if kind is None:
            self.close()
        else:
            self._pool.abort(self._model.close)

    def _submit(self, call: Callable[[], T]) -> "Future[T]":
        with translated():
            return self._pool.submit(call, self._place_s)
