"""The errors that a caller of the client may meet. Each carries `status`, `type` and `message`.

    ClientError
    ├── InvalidPayload          0   cannot be sent as it is: raised before anything is
    ├── NoConnection            0   refused, or lost before the answer
    ├── TLSFailed               0   a certificate that is not trusted, or no TLS in common
    ├── DeadlineExceeded        0   no answer within the time of the whole call
    ├── Closed                  0   the client was closed meanwhile
    ├── Rejected              4xx   the server refuses it: repeating is no use
    ├── Unavailable      503, 429   overloaded, its queue full, or no worker up: never ran
    ├── ServerFailed          5xx   it failed on this request
    ├── ItemFailed                  one item of a list; stands in the item's place
    ├── ChunksFailed                some chunks of one input; has the answers of the others
    └── ManagementError             the management API refused, with its own words
        ├── Unreachable         0   nothing answers at the management address
        ├── NotReady            0   workers did not become ready in time
        ├── LoadFailed          0   a worker cannot load its model
        ├── RolloutFailed       0   the old version serves on
        └── NodesFailed             some nodes of several failed; says which, and which did not

`type` is what the server calls it ("CorruptInput", "ServiceUnavailableException"), or the class's own name.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class ClientError(Exception):
    """A call failed.

    Attributes:
        status: HTTP status of the answer; 0 where there was none.
        type: short name of the reason.
        message: one line for a person.
        retry_after_s: seconds after which the server wants to be asked again; 0 where it does not say.
    """

    retry_after_s = 0.0

    def __init__(self, message: str, status: int = 0, type: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type or self.__class__.__name__

    def to_json(self) -> dict[str, Any]:
        """Return the error as the server writes it: {"code", "type", "message"}."""
        return {"code": self.status, "type": self.type, "message": self.message}


class InvalidPayload(ClientError, ValueError):
    """The payload cannot be sent as it is."""


class NoConnection(ClientError):
    """The connection was refused, or lost before the answer.

    Attributes:
        was_sent: whether the server may have seen the request.
    """

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class TLSFailed(ClientError):
    """Client and server do not trust each other or speak no TLS in common; repeating is no use."""


class DeadlineExceeded(ClientError, TimeoutError):
    """There was no answer within the deadline of the call."""


class Closed(ClientError):
    """The client was closed meanwhile."""


class Rejected(ClientError):
    """The server refuses the request: sending it again is no use."""


class Unavailable(ClientError):
    """The server is overloaded, its queue is full, or no worker is up; the request never ran."""


class ServerFailed(ClientError):
    """The server failed on this request."""


class ItemFailed(ClientError):
    """One item of a list failed; the others have answers."""


class ChunksFailed(ClientError):
    """Some chunks of one input failed.

    Attributes:
        errors: the range of a failed chunk's items -> the error that it ended with.
        results: the range of any other chunk's items -> its answer.
    """

    def __init__(self, errors: Mapping[range, Exception], results: Mapping[range, Any]) -> None:
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
    """Nothing answers at the management address."""


class NotReady(ManagementError):
    """The workers did not become ready in time."""


class LoadFailed(ManagementError):
    """A worker cannot load its model."""


class RolloutFailed(ManagementError):
    """The new version does not serve; the old one does as before."""


class NodesFailed(ManagementError):
    """A call did not reach all nodes, or not all did what was asked.

    Attributes:
        errors: a node's name -> the error that it ended with.
        done: the names of those that did it.
    """

    def __init__(self, errors: Mapping[str, ClientError], done: Sequence[str]) -> None:
        first = next(iter(errors.values()))
        words = "; ".join(f"{name}: {error.message}" for name, error in errors.items())
        super().__init__(f"{words}; done: {', '.join(done) or 'none'}", first.status, first.type)
        self.errors = dict(errors)
        self.done = list(done)


def of_status(status: int, type: str, message: str) -> ClientError:
    """Make the error that an HTTP status of 400 or more stands for.

    Args:
        status: the HTTP status.
        type: short name of the reason, as the server gives it.
        message: the server's words.
    """
    if status in (429, 503):
        return Unavailable(message, status, type)
    return (Rejected if 400 <= status < 500 else ServerFailed)(message, status, type)


def raise_failed(answers: Sequence[Any] | Iterable[Any]) -> None:
    """Raise the first ItemFailed among the answers to a list; do nothing where there is none."""
    for answer in answers:
        if isinstance(answer, ItemFailed):
            raise answer
