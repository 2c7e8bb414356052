"""Errors of the handlers: values for a client's item, exceptions for everything else.

    InvalidInput                   400  raised while decoding one item; becomes that item's ItemError
    ├── EmptyInput                 400  nothing was sent
    ├── MalformedJson              400  the body says it is JSON and is not
    ├── MalformedMessage           400  the body says it is a protobuf message and is not
    ├── UnknownShape               400  the body is not one of the accepted shapes
    ├── MalformedTensor            400  a tensor's bytes, datatype and shape do not agree
    ├── TensorMismatch             400  a tensor is not what the model's signature says
    ├── BatchTooLarge              400  the request has more rows than the model's max_batch_size
    ├── UnknownOption              400  an option's name or value is not accepted
    ├── UnknownLanguage            400  the text is in a language that the model lacks, or nobody can say in which
    ├── InvalidText                400  text that is not UTF-8, or has null characters
    ├── InvalidPriority            400  the header X-Priority, or the parameter, is not one of the levels
    ├── InvalidTimeout             400  the header X-Timeout-Ms, or the parameter timeout, is no time
    ├── NotAcceptable              406  the answer cannot have the form that the header Accept asks for
    ├── UnsupportedMedia           415  the bytes are of no accepted format
    ├── CorruptInput               422  the format is right, the content broken
    └── TooLarge                   413  a limit of the configuration is exceeded
        ├── BodyTooLarge           413
        ├── ImageTooLarge          413
        ├── TextTooLong            413
        ├── TooManyInstances       413
        ├── WorkTooLarge           413  the items of a request are too much together
        └── ResponseTooLarge       413  the answer would be
    OutOfMemory                    507  the engine could not hold the micro-batch, which is then tried again in halves
    WrongOutput                    500  the model gave what its signature does not say; likewise in halves
    QueueFull, Overloaded          503  the schedule refuses a request (or 429); these are values and never raised
    BatchTimeout                   503  the batch ran out of time before this item; likewise a value
    QueueTimeout                   504  the request has waited in vain; likewise a value
    InvalidConfig                    -  the archive's configuration is wrong; the worker must not start

A message names field, limit and value, never anybody's payload.
"""

import traceback
from dataclasses import dataclass
from typing import Any, ClassVar

# The worker's log says with these words why a model does not come up; torchserve_client.worker_log looks for them.
LOAD_FAILED = "Cannot load"


class InvalidInput(Exception):
    """One client's input cannot be served. `args[0]` is shown to that client alone."""

    code: ClassVar[int] = 400


class EmptyInput(InvalidInput):
    """Nothing was sent."""


class MalformedJson(InvalidInput):
    """The body says it is JSON and is not."""


class MalformedMessage(InvalidInput):
    """The body says it is a protobuf message and is not."""


class UnknownShape(InvalidInput):
    """The body is not one of the accepted shapes."""


class MalformedTensor(InvalidInput):
    """A tensor's bytes, datatype and shape do not agree."""


class TensorMismatch(InvalidInput):
    """A tensor is not what the model's signature says."""


class BatchTooLarge(InvalidInput):
    """The request has more rows than the model's `max_batch_size`; Triton answers it with 400 too."""


class UnknownOption(InvalidInput):
    """An option's name or value is not accepted."""


class UnknownLanguage(InvalidInput):
    """The text is in a language that the model does not have, or its language is not certain."""


class InvalidText(InvalidInput):
    """The text is not UTF-8, or has null characters."""


class InvalidPriority(InvalidInput):
    """The header X-Priority, or the protocol's parameter `priority`, is not one of the levels."""


class InvalidTimeout(InvalidInput):
    """The header X-Timeout-Ms, or the protocol's parameter `timeout`, is not a number above 0."""


class NotAcceptable(InvalidInput):
    """The answer cannot have the form that the header Accept asks for."""

    code = 406


class UnsupportedMedia(InvalidInput):
    """The bytes are of no accepted format."""

    code = 415


class CorruptInput(InvalidInput):
    """The format is right, the content is truncated or broken."""

    code = 422


class TooLarge(InvalidInput):
    """A limit of the configuration is exceeded."""

    code = 413


class BodyTooLarge(TooLarge):
    """The request's body has more bytes than `max_body_bytes`."""


class ImageTooLarge(TooLarge):
    """The image has more pixels than `max_pixels`."""


class TextTooLong(TooLarge):
    """The text has more characters or tokens than the model takes."""


class TooManyInstances(TooLarge):
    """The request holds more items than `max_instances`."""


class WorkTooLarge(TooLarge):
    """The items of a request ask for more together than one request may."""


class ResponseTooLarge(TooLarge):
    """The answer would have more bytes than `max_response_bytes`."""


class OutOfMemory(Exception):
    """The engine could not hold the micro-batch."""


class WrongOutput(Exception):
    """The model gave what its signature does not say; the message names the tensor, and is shown to its clients."""

    code: ClassVar[int] = 500


class OutOfTime(Exception):
    """The batch has taken as long as it may, so that TorchServe does not end its worker."""


class InvalidConfig(ValueError):
    """The archive's configuration is wrong; the message lists every problem."""


@dataclass(frozen=True, slots=True)
class ItemError:
    """The reason why one item has no result.

    Attributes:
        code: the item's HTTP status, 400..599.
        type: the error's name, stable for programs.
        message: one sentence for people.
    """

    code: int
    type: str
    message: str

    def to_json(self) -> dict[str, Any]:
        """Write the error as the body of a failed request has it: {"code", "type", "message"}."""
        return {"code": self.code, "type": self.type, "message": self.message}

    @classmethod
    def of(cls, error: InvalidInput) -> "ItemError":
        """Make a value of an exception that decoding raised."""
        return cls(error.code, type(error).__name__, str(error))


# A name of a client's own making is repeated to it up to so many characters; ours have fewer.
LONGEST_NAME = 40


def shown(name: str) -> str:
    """Repeat a name of a client's own making for a message, unless it is long or odd and so may be anything."""
    is_plain = len(name) <= LONGEST_NAME and name.isascii() and name.isprintable()
    return name if is_plain else f"a name of {len(name)} characters"


INTERNAL_ERROR = ItemError(500, "InternalError", "The model failed on this input; the server's log says where.")
OUT_OF_MEMORY = ItemError(507, "OutOfMemory", "The model ran out of memory on this input alone.")
OUT_OF_TIME = ItemError(
    503, "BatchTimeout", "Its batch had taken too long, and this input was left out; send fewer at once, or try again."
)
EXPIRED = ItemError(504, "QueueTimeout", "The request waited longer than it may; no work was spent on it.")


def where(error: BaseException) -> str:
    """Say where a bug was raised, for the log: type and frames, not the message, which may quote a payload."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join([type(error).__name__, *(f"{f.name} ({f.filename}:{f.lineno})" for f in reversed(frames))])
