"""The errors of the clients that are shaped as PyTriton's, under its names.

    PyTritonClientError
    ├── PyTritonClientValueError                   also a ValueError: arguments that cannot be; nothing was sent
    │   └── PyTritonClientInvalidUrlError          an address that is none, or one of gRPC
    ├── PyTritonClientTimeoutError                 also a TimeoutError: no server, or no answer in time
    ├── PyTritonClientModelUnavailableError        no such model or version, or one that does not say what it takes
    ├── PyTritonClientClosedError                  the client was closed
    ├── PyTritonClientModelDoesntSupportBatchingError
    ├── PyTritonClientInferenceServerError         the server's own words, with status and type
    └── PyTritonClientQueueFullError               too much in flight already

Each has the error of torchserve_client.errors that it was made of as its `__cause__`, where there is one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchserve_client.errors import (
    ClientError,
    Closed,
    DeadlineExceeded,
    InvalidPayload,
    NoConnection,
    QueueFull,
    TLSFailed,
)


class PyTritonClientError(Exception):
    """Something of a client went wrong.

    Attributes:
        message: what, in words.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class PyTritonClientValueError(PyTritonClientError, ValueError):
    """The arguments cannot be what was meant."""


class PyTritonClientInvalidUrlError(PyTritonClientValueError):
    """The address cannot be asked."""


class PyTritonClientTimeoutError(PyTritonClientError, TimeoutError):
    """There was no server, or no answer of it, in time."""


class PyTritonClientModelUnavailableError(PyTritonClientError):
    """The server has no such model or version, or it does not say what it takes."""


class PyTritonClientClosedError(PyTritonClientError):
    """The client was closed."""


class PyTritonClientModelDoesntSupportBatchingError(PyTritonClientError):
    """The model takes single samples only."""


class PyTritonClientInferenceServerError(PyTritonClientError):
    """The server answered with an error.

    Attributes:
        status: the HTTP status.
        type: what the server calls the error, as in "BatchTooLarge".
        outputs: where some rows failed and others did not: name -> array of all rows, those of failed ones undefined.
    """

    def __init__(self, message: str, status: int = 0, type: str = "", outputs: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.outputs = outputs or {}


class PyTritonClientQueueFullError(PyTritonClientError):
    """So many requests are in flight that no other may start."""


# Errors without an answer of the server's.
OWN: dict[tuple[type[ClientError], ...], type[PyTritonClientError]] = {
    (NoConnection, DeadlineExceeded): PyTritonClientTimeoutError,
    (Closed,): PyTritonClientClosedError,
    (QueueFull,): PyTritonClientQueueFullError,
    (InvalidPayload,): PyTritonClientValueError,
    (TLSFailed,): PyTritonClientError,
}


@contextmanager
def translated() -> Iterator[None]:
    """Raise the errors of torchserve_client, inside the block, as those of this module."""
    try:
        yield
    except ClientError as error:
        raise _of(error) from error


def _of(error: ClientError) -> PyTritonClientError:
    for kinds, own in OWN.items():
        if isinstance(error, kinds):
            return own(error.message)
    if error.status == 404:
        return PyTritonClientModelUnavailableError(error.message)
    return PyTritonClientInferenceServerError(error.message, error.status, error.type)
