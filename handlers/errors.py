"""Errors of the handlers, each with its HTTP status, and how an exception becomes the outcome of an item.

    InvalidInput, raised while one item is decoded     -> ItemError, the outcome of that item alone
    OutOfMemory, WrongOutput, raised for a micro-batch -> tried again in halves, then an ItemError of one item
    OutOfTime, raised for a micro-batch                -> OUT_OF_TIME, the outcome of all its items
    any other exception                                -> INTERNAL_ERROR, and the log says where it was raised
    InvalidConfig                                      -> the worker does not start

A message names field, limit and value, never a client's payload.
"""

import traceback
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

# The start of the log line with the reason why a model does not load; torchserve_client.worker_log looks for it.
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


class InvalidBody(InvalidInput):
    """The body is not one of the accepted shapes."""


class MalformedTensor(InvalidInput):
    """A tensor's bytes, datatype and shape do not agree."""


class TensorMismatch(InvalidInput):
    """A tensor is not what the model's signature says."""


class BatchTooLarge(InvalidInput):
    """The request has more rows than `max_request_items` of a model of tensors; Triton answers it with 400 too."""


class InvalidOption(InvalidInput):
    """An option's name or value is not accepted."""


class UnknownLanguage(InvalidInput):
    """The text is in a language that the model does not have, or its language is not certain."""


class InvalidText(InvalidInput):
    """The text is not UTF-8, or has null characters."""


class InvalidPriority(InvalidInput):
    """The header X-Priority, or the protocol's parameter `priority`, is not one of the levels."""


class InvalidTimeout(InvalidInput):
    """The header X-Timeout-Ms, or the protocol's parameter `timeout`, is not a number above 0."""


class UnsupportedMedia(InvalidInput):
    """The bytes are of no accepted format."""

    code = 415


class CorruptInput(InvalidInput):
    """The format is right, the content is truncated or broken."""

    code = 422


class OutOfRange(CorruptInput):
    """A whole number is outside the range that the model computes with, such as the rows of a table."""


class NonFiniteInput(CorruptInput):
    """A floating-point input contains NaN or infinity, and the archive does not set `allow_non_finite`."""


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
    """The request holds more items than `max_request_items`."""


class WorkTooLarge(TooLarge):
    """The items of a request ask for more together than one request may."""


class ResponseTooLarge(TooLarge):
    """The answer would have more bytes than `max_response_bytes`."""


class OutOfMemory(Exception):
    """The engine could not hold the micro-batch."""


class WrongOutput(Exception):
    """An output is not what the model's signature says; the message names the tensor, and clients read it."""

    code: ClassVar[int] = 500


class OutOfTime(Exception):
    """The batch has taken as long as it may; later TorchServe would end the worker."""


class InvalidConfig(ValueError):
    """The archive's configuration is wrong; the message lists every problem."""


class Unfaithful(InvalidConfig):
    """The engine cannot run the model, or answers otherwise than it does; another engine, `instead`, may."""

    def __init__(self, message: str, instead: str = "torch") -> None:
        super().__init__(message)
        self.instead = instead


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
        """Return the body of a failed request: {"code", "type", "message"}."""
        return {"code": self.code, "type": self.type, "message": self.message}

    @classmethod
    def of(cls, error: InvalidInput) -> "ItemError":
        """Return the value for an exception."""
        return cls(error.code, type(error).__name__, str(error))


# The most characters of a client's own name that a message repeats.
LONGEST_NAME = 40


def shown(name: str) -> str:
    """Return a client's own name for a message, or only its length where it is long or not printable ASCII."""
    is_plain = len(name) <= LONGEST_NAME and name.isascii() and name.isprintable()
    return name if is_plain else f"a name of {len(name)} characters"


INTERNAL_ERROR = ItemError(500, "InternalError", "The model failed on this input; the server's log says where.")
OUT_OF_MEMORY = ItemError(507, "OutOfMemory", "The model ran out of memory on this input alone.")
OUT_OF_TIME = ItemError(
    503, "BatchTimeout", "Its batch had taken too long, and this input was left out; send fewer at once, or try again."
)
EXPIRED = ItemError(504, "QueueTimeout", "The request waited longer than it may; no work was spent on it.")


# A message of a library has so many characters of use.
REASON_LENGTH = 240


def reason(error: BaseException) -> str:
    """Take from an error the line that says what is wrong; libraries write theirs into pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # OpenVINO's reader of PyTorch goes on after the cause.
    named = [line for line in lines if line.startswith("-- No conversion rule")]
    named += [line for before, line in pairwise(lines) if before == "Exception:"]
    line = (named or lines[-1:] or [""])[0].removeprefix("-- ")
    line = line if len(line) <= REASON_LENGTH else line[:REASON_LENGTH] + "..."
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def where(error: BaseException) -> str:
    """Return where a bug was raised, for the log: type and frames, not the message, which may quote a payload."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join([type(error).__name__, *(f"{f.name} ({f.filename}:{f.lineno})" for f in reversed(frames))])
