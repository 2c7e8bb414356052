"""ModelClient asks one model, one request after the other.

arrays -> checked -> ready, configured (once) -> Client.infer -> arrays
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from torchserve_client.client import Client
from torchserve_client.errors import ClientError, DeadlineExceeded, NoConnection, ServerFailed, Unavailable
from torchserve_client.protocol import BF16
from torchserve_client.pytriton import arguments
from torchserve_client.pytriton.addresses import Server, candidates
from torchserve_client.pytriton.arguments import Array, Arrays
from torchserve_client.pytriton.exceptions import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    translated,
)
from torchserve_client.pytriton.model_config import TritonModelConfig, configured

T = TypeVar("T")
Extras = dict[str, str | int | bool]

# The output of this project's handlers that says which rows failed: JSON, empty for those that did not.
ERROR = "error"


@dataclass(frozen=True, slots=True)
class Tuning:
    """Defaults of the timeouts, which are PyTriton's, and how often a server is looked at that is waited for."""

    init_timeout_s: float = 300.0
    inference_timeout_s: float = 60.0
    # Seconds between two looks: the first are short for who has just started it, the others no load for the server.
    first_pause_s: float = 0.1
    longest_pause_s: float = 1.0
    # Connections that are kept: those of as many threads.
    connections: int = 64


TUNING = Tuning()


class ModelClient:
    """Asks a model of a gateway or a TorchServe; threads may share it."""

    def __init__(
        self,
        url: str,
        model_name: str,
        model_version: str | None = None,
        *,
        lazy_init: bool = True,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
        model_config: TritonModelConfig | None = None,
        ensure_model_is_ready: bool = True,
        access_token: str | None = None,
    ) -> None:
        """Address a model.

        Args:
            url: HOST, HOST:PORT, or either behind http:// or https://. Without a port 8000 is asked, the gateway's,
                and where nothing answers there 8080, TorchServe's own.
            model_name: the model's name.
            model_version: as registered; None means the default version.
            lazy_init: whether the model is waited for by the first call that needs it, and not here.
            init_timeout_s: most seconds to wait for server and model; None means 300.
            inference_timeout_s: deadline of a request in seconds, its retries included; None means 60.
            model_config: what is known of the model already, and then not asked.
            ensure_model_is_ready: whether the model is waited for, though its `model_config` is given.
            access_token: the key of the inference API, where token authorization is on.

        Raises:
            PyTritonClientInvalidUrlError: the address is none, or one of gRPC.
            PyTritonClientTimeoutError: without `lazy_init`, server or model is not ready in time.
        """
        self._url, self._model_name, self._model_version = url, model_name, model_version
        self._init_timeout_s = TUNING.init_timeout_s if init_timeout_s is None else init_timeout_s
        self._inference_timeout_s = TUNING.inference_timeout_s if inference_timeout_s is None else inference_timeout_s
        self._access_token = access_token
        self._server = Server(
            candidates(url),
            token=access_token,
            timeout_s=self._inference_timeout_s,
            connections=TUNING.connections,
        )
        self._config = model_config
        self._is_ready = model_config is not None and not ensure_model_is_ready
        self._lock = threading.Lock()
        self._closed = threading.Event()
        if not lazy_init:
            try:
                self._initialized()
            except BaseException:
                self.close()
                raise

    @classmethod
    def from_existing_client(cls, existing_client: "ModelClient") -> Self:
        """Make a client of the same model, with what the other one knows of it already, and connections of its own."""
        return cls(
            existing_client._url,
            existing_client._model_name,
            existing_client._model_version,
            init_timeout_s=existing_client._init_timeout_s,
            inference_timeout_s=existing_client._inference_timeout_s,
            model_config=existing_client._config,
            ensure_model_is_ready=existing_client._config is None,
            access_token=existing_client._access_token,
        )

    @property
    def model_config(self) -> TritonModelConfig:
        """What the model takes and gives; server and model are waited for.

        Raises:
            PyTritonClientTimeoutError: they are not ready within `init_timeout_s`.
            PyTritonClientModelUnavailableError: the model does not say it.
            PyTritonClientClosedError: the client is closed.
        """
        return self._config or self._initialized()

    @property
    def is_batching_supported(self) -> bool:
        """Whether a request may have several rows; errors are those of `model_config`."""
        return self.model_config.max_batch_size > 0

    def wait_for_server(self, timeout_s: float) -> None:
        """Wait until the server is ready: a gateway has workers for all its models, a TorchServe calls itself healthy.

        Raises:
            PyTritonClientTimeoutError: it is not within `timeout_s`.
            PyTritonClientClosedError: the client is closed.
        """
        self._wait(lambda client, left_s: client.is_ready(timeout_s=left_s), timeout_s, "the server")

    def wait_for_model(self, timeout_s: float) -> None:
        """Wait until the model is ready.

        Raises:
            PyTritonClientTimeoutError: it is not within `timeout_s`.
            PyTritonClientClosedError: the client is closed.
        """
        name, version = self._model_name, self._model_version
        self._wait(lambda client, left_s: client.is_ready(name, version, timeout_s=left_s), timeout_s, self._named)

    def infer_sample(
        self,
        *inputs: Array,
        parameters: Extras | None = None,
        headers: Extras | None = None,
        **named_inputs: Array,
    ) -> Arrays:
        """Ask about one sample: arrays without a dimension that counts rows.

        Args:
            inputs: arrays, in the order of the model's inputs; or else `named_inputs`.
            parameters: what the model is told beside them.
            headers: further headers of the request, as in {"X-Priority": 1}.
            named_inputs: arrays by the names of the model's inputs.

        Returns:
            Name of an output -> array, without that dimension.

        Raises:
            PyTritonClientValueError: no arrays, or some by position and others by name; nothing was sent.
            TypeError: one is no array of numpy; nothing was sent.
            PyTritonClientTimeoutError: server or model is not ready in time, or does not answer in time.
            PyTritonClientModelUnavailableError: there is no such model or version, or it does not say what it takes.
            PyTritonClientInferenceServerError: the server answered with an error.
            PyTritonClientClosedError: the client is closed.
        """
        arguments.check_given(inputs, named_inputs, is_batch=False)
        check_extras(parameters, headers)
        config = self._initialized()
        arrays = arguments.by_name(inputs, named_inputs, config.inputs)
        if config.max_batch_size < 1:
            return self._infer(config, arrays, parameters, headers)
        rows = {name: array[None] for name, array in arrays.items()}
        answer = self._infer(config, rows, parameters, headers)
        return {name: array[0] for name, array in answer.items()}

    def infer_batch(
        self,
        *inputs: Array,
        parameters: Extras | None = None,
        headers: Extras | None = None,
        **named_inputs: Array,
    ) -> Arrays:
        """Ask about several rows at once, which the first dimension of each array counts.

        Args:
            inputs, parameters, headers, named_inputs: see `infer_sample`.

        Returns:
            Name of an output -> array, of as many rows.

        Raises:
            PyTritonClientValueError: as of `infer_sample`, or the arrays have different numbers of rows.
            PyTritonClientModelDoesntSupportBatchingError: the model takes single samples.
            PyTritonClientInferenceServerError: the server answered with an error, or some of the rows failed: its
                `outputs` has the others.
            TypeError, PyTritonClientError: as of `infer_sample`.
        """
        arguments.check_given(inputs, named_inputs, is_batch=True)
        check_extras(parameters, headers)
        config = self._initialized()
        if config.max_batch_size < 1:
            words = f"{self._model_name}: this model takes single samples: use infer_sample"
            raise PyTritonClientModelDoesntSupportBatchingError(words)
        return self._infer(config, arguments.by_name(inputs, named_inputs, config.inputs), parameters, headers)

    def close(self) -> None:
        """Let go of every connection; calls that are in flight raise PyTritonClientClosedError."""
        self._closed.set()
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _named(self) -> str:
        return f"model {self._model_name}" + (f" version {self._model_version}" if self._model_version else "")

    def _initialized(self) -> TritonModelConfig:
        """Wait for the model and ask what it takes, once; threads that come meanwhile wait for the first."""
        if self._is_ready and self._config is not None:
            return self._config
        with self._lock:
            ends_s = time.monotonic() + self._init_timeout_s
            if not self._is_ready:
                self.wait_for_model(self._init_timeout_s)
            if self._config is None:
                self._config = self._asked(ends_s - time.monotonic())
            self._is_ready = True
            return self._config

    def _asked(self, left_s: float) -> TritonModelConfig:
        name, version = self._model_name, self._model_version
        try:
            metadata = self._wait(lambda client, left_s: client.metadata(name, version, timeout_s=left_s), left_s, name)
        except PyTritonClientInferenceServerError as error:
            if isinstance(error.__cause__, ServerFailed):
                raise PyTritonClientModelUnavailableError(error.message) from error
            raise
        return configured(metadata)

    def _wait(self, ask: Callable[[Client, float], T], timeout_s: float, what: str) -> T:
        """Ask until there is an answer other than False, and the server no longer says that it is too early."""
        ends_s = time.monotonic() + timeout_s
        pause_s = TUNING.first_pause_s
        reason = "it says so"
        with translated():
            while True:
                try:
                    answer = ask(self._server.client(), max(0.001, ends_s - time.monotonic()))
                except (NoConnection, DeadlineExceeded, Unavailable) as error:
                    reason = error.message
                except ClientError as error:
                    if error.status != 404:
                        raise
                    reason = error.message
                else:
                    if answer is not False:
                        return answer
                if time.monotonic() + pause_s >= ends_s:
                    raise PyTritonClientTimeoutError(f"{what} is not ready after {timeout_s:g} s: {reason}")
                if self._closed.wait(pause_s):
                    raise PyTritonClientClosedError("the client was closed while it waited")
                pause_s = min(TUNING.longest_pause_s, 2 * pause_s)

    def _infer(
        self, config: TritonModelConfig, arrays: Arrays, parameters: Extras | None, headers: Extras | None
    ) -> Arrays:
        with translated():
            try:
                answer = self._server.client().infer(
                    self._model_name,
                    arrays,
                    # A gateway finds "1" for "1.0", TorchServe does not.
                    version=self._model_version and (config.model_version or self._model_version),
                    timeout_s=self._inference_timeout_s,
                    parameters=parameters,
                    headers={name: str(value) for name, value in (headers or {}).items()},
                    datatypes={spec.name: BF16 for spec in config.inputs if spec.datatype == BF16},
                )
            except ValueError as error:
                if isinstance(error, ClientError):
                    raise
                words = f"{self._model_name}: what came back is no answer to arrays: {error}"
                raise PyTritonClientInferenceServerError(words, 200, "UnknownAnswer") from error
        return _succeeded(answer, {spec.name for spec in config.outputs})


def check_extras(parameters: Any, headers: Any) -> None:
    """Check both; see `arguments.check_extras`."""
    arguments.check_extras("parameters", parameters)
    arguments.check_extras("headers", headers)


def _succeeded(answer: Arrays, own: set[str]) -> Arrays:
    """Return the outputs, unless rows failed."""
    if ERROR in own or ERROR not in answer:
        return answer
    outputs: Mapping[str, Array] = {name: array for name, array in answer.items() if name != ERROR}
    errors = answer[ERROR].ravel().tolist()
    failed = [row for row, error in enumerate(errors) if error]
    if not failed:
        return dict(outputs)
    said = json.loads(errors[failed[0]])
    words = f"{len(failed)} of {len(errors)} rows failed, row {failed[0]} first: {said.get('message', '')}"
    raise PyTritonClientInferenceServerError(
        words, int(said.get("code", 500)), str(said.get("type", "")), dict(outputs)
    )
