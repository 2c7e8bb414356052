"""The errors that the client raises. Each carries `status`, `type` and `message`.

    ClientError
    ├── InvalidPayload          0   cannot be sent; raised before anything is
    ├── NoConnection            0   refused, or lost before the response
    ├── TLSFailed               0   a certificate is not trusted, or no common version of TLS
    ├── DeadlineExceeded        0   no response within the deadline of the call
    ├── Closed                  0   the client was closed meanwhile
    ├── Rejected              4xx   the server rejects the request; a retry cannot help
    ├── Unavailable      503, 429   overloaded, queue full, or no worker: the request never ran
    ├── ServerFailed          5xx   the server failed on this request
    ├── ItemFailed                  one item of a list; replaces it in the result
    ├── ChunksFailed                some chunks of one input; contains the results of the others
    └── ManagementError             the management API refused, with its message
        ├── Unreachable         0   no server answers at the management address
        ├── NotReady            0   workers did not become ready in time
        ├── LoadFailed          0   a worker cannot load its model
        ├── RolloutFailed       0   the old version continues to serve
        └── NodesFailed             some of several nodes failed; names the failed and the successful ones

`type` is the server's ("CorruptInput", "ServiceUnavailableException"), or the class's name.
"""

from collections.abc import Iterable, Mapping, Sequence


class ClientError(Exception):
    """A call failed.

    Attributes:
        status: HTTP status of the response; 0 without a response.
        type: short name of the reason.
        message: one line for a person.
        retry_after_s: seconds of the server's Retry-After; 0 without one.
    """

    retry_after_s = 0.0

    def __init__(self, message: str, status: int = 0, type: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type or self.__class__.__name__

    def __reduce__(self) -> tuple[object, ...]:
        """Let a process hand the error on: a pool ends if its worker's error cannot be unpickled."""
        return _restore, (type(self), self.args, self.__dict__)

    def to_json(self) -> dict[str, object]:
        """Return the error in the server's form: {"code", "type", "message"}."""
        return {"code": self.status, "type": self.type, "message": self.message}


def _restore(kind: type[ClientError], arguments: tuple[object, ...], attributes: dict[str, object]) -> ClientError:
    """Make an error without its constructor, whose arguments differ from the message."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


class InvalidPayload(ClientError, ValueError):
    """The payload cannot be sent."""


class NoConnection(ClientError):
    """The connection was refused, or lost before the response.

    Attributes:
        was_sent: whether the server may have received the request.
    """

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class TLSFailed(ClientError):
    """A certificate is not trusted, or client and server have no common version of TLS; a retry cannot help."""


class DeadlineExceeded(ClientError, TimeoutError):
    """The response was not complete within the deadline of the call."""


class Closed(ClientError):
    """The client was closed meanwhile."""


class Rejected(ClientError):
    """The server rejects the request; a retry cannot help."""


class Unavailable(ClientError):
    """The server is overloaded, its queue is full, or no worker is up; the request never ran."""


class ServerFailed(ClientError):
    """The server failed on this request."""


class ItemFailed(ClientError):
    """One item of a list failed; the others have results."""


class ChunksFailed(ClientError):
    """Some chunks of one input failed.

    Attributes:
        errors: the range of a failed chunk's items -> its error.
        results: the range of any other chunk's items -> its result.
    """

    def __init__(self, errors: Mapping[range, Exception], results: Mapping[range, object]) -> None:
        chunks = len(errors) + len(results)
        first = next(iter(errors.values()))
        places = ", ".join(f"{items.start}..{items.stop - 1}" for items in errors)
        super().__init__(
            f"{len(errors)} of {chunks} chunks failed, items {places}: {first}",
            getattr(first, "status", 0),
            getattr(first, "type", type(first).__name__),
        )
        self.errors = dict(errors)
        self.results = dict(results)


class ManagementError(ClientError):
    """The management API refused a call."""


class Unreachable(ManagementError):
    """No server answers at the management address."""


class NotReady(ManagementError):
    """The workers did not become ready in time."""


class LoadFailed(ManagementError):
    """A worker cannot load its model."""


class RolloutFailed(ManagementError):
    """The new version does not serve; the old one continues to."""


class NodesFailed(ManagementError):
    """A call failed on some of several nodes.

    Attributes:
        errors: the name of a failed node -> its error.
        done: the names of the successful nodes.
    """

    def __init__(self, errors: Mapping[str, ClientError], done: Sequence[str]) -> None:
        first = next(iter(errors.values()))
        words = "; ".join(f"{name}: {error.message}" for name, error in errors.items())
        super().__init__(f"{words}; done: {', '.join(done) or 'none'}", first.status, first.type)
        self.errors = dict(errors)
        self.done = list(done)


def make_error(status: int, type: str, message: str) -> ClientError:
    """Make the error of an HTTP status of 400 or more, with the server's type and message."""
    if status in (429, 503):
        return Unavailable(message, status, type)
    return (Rejected if 400 <= status < 500 else ServerFailed)(message, status, type)


def raise_failed(answers: Iterable[object]) -> None:
    """Raise the first ItemFailed of a list's results.

    Args:
        answers: the results of `Client.predict` for a list.

    Raises:
        ItemFailed: the error of the first failed item.
    """
    for answer in answers:
        if isinstance(answer, ItemFailed):
            raise answer
