"""Errors of the handlers with their HTTP statuses, and the way from an exception to the outcome of an item.

    InvalidInput, raised while one item is decoded     -> ItemError, the outcome of only that item
    OutOfMemory, WrongOutput, raised for a micro-batch -> tried again in halves, then an ItemError of one item
    OutOfTime, raised for a micro-batch                -> OUT_OF_TIME, the outcome of all its items
    any other exception                                -> INTERNAL_ERROR, and the log has the line that raised it
    InvalidConfig                                      -> the worker does not start

A message names field, limit and value, never a client's payload.
"""

import traceback
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

# The start of the log line with the reason why a model cannot be loaded; torchserve_client.worker_log searches for it.
LOAD_FAILED = "Cannot load"


class InvalidInput(Exception):
    """One client's input cannot be served. Only that client gets `args[0]`."""

    code: ClassVar[int] = 400


class EmptyInput(InvalidInput):
    """The body, a form, a list or a text is empty."""


class MalformedJson(InvalidInput):
    """The body is not valid JSON, although its type is JSON."""


class MalformedMessage(InvalidInput):
    """The body is not a valid protobuf message, although its type is."""


class InvalidBody(InvalidInput):
    """The body has none of the accepted forms."""


class MalformedTensor(InvalidInput):
    """A tensor's bytes, datatype and shape do not agree."""


class TensorMismatch(InvalidInput):
    """A tensor does not agree with the model's signature."""


class BatchTooLarge(InvalidInput):
    """The request has more rows than `max_request_items` of a model of tensors; 400, as with Triton."""


class InvalidOption(InvalidInput):
    """An option's name or value is not accepted."""


class UnknownLanguage(InvalidInput):
    """The model does not have the text's language, or the language is not certain."""


class InvalidText(InvalidInput):
    """The text is not valid UTF-8, or contains null characters."""


class InvalidPriority(InvalidInput):
    """The header X-Priority, or the protocol's parameter `priority`, is not one of the levels."""


class InvalidTimeout(InvalidInput):
    """The header X-Timeout-Ms, or the protocol's parameter `timeout`, is not a number above 0."""


class OtherVectorSpace(InvalidInput):
    """The header X-Vector-Space names another space than the model's: its vectors must not be mixed."""

    code = 409


class UnsupportedMedia(InvalidInput):
    """The bytes have none of the accepted formats."""

    code = 415


class CorruptInput(InvalidInput):
    """The content is truncated or broken, in an accepted format."""

    code = 422


class OutOfRange(CorruptInput):
    """A whole number is outside the model's range, such as the rows of a table."""


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
    """The text has more characters or tokens than the model accepts."""


class TooManyInstances(TooLarge):
    """The request has more items than `max_request_items`."""


class WorkTooLarge(TooLarge):
    """All items of a request together exceed a limit of one request."""


class ResponseTooLarge(TooLarge):
    """The answer would have more bytes than `max_response_bytes`."""


class OutOfMemory(Exception):
    """The micro-batch did not fit into the engine's memory."""


class WrongOutput(Exception):
    """An output does not agree with the model's signature; the message, for clients, names the tensor."""

    code: ClassVar[int] = 500


class OutOfTime(Exception):
    """The batch has reached its time limit; TorchServe would soon end the worker."""


class InvalidConfig(ValueError):
    """The archive's configuration is wrong; the message lists every problem."""


class Unfaithful(InvalidConfig):
    """The engine cannot run the model, or its results differ; the engine `instead` may succeed."""

    def __init__(self, message: str, instead: str = "torch") -> None:
        super().__init__(message)
        self.instead = instead


@dataclass(frozen=True, slots=True)
class ItemError:
    """The reason why one item has no result."""

    code: int  # its HTTP status, 400..599
    type: str  # the error's name, stable for programs
    message: str  # for people

    def to_json(self) -> dict[str, object]:
        """Return the body of a failed request: {"code", "type", "message"}."""
        return {"code": self.code, "type": self.type, "message": self.message}

    @classmethod
    def of(cls, error: InvalidInput) -> "ItemError":
        return cls(error.code, type(error).__name__, str(error))


LONGEST_NAME = 40  # the most characters of a client's name that a message repeats


def show_name(name: str) -> str:
    """Return a client's name for a message, or only its length if it is long or not printable ASCII."""
    is_plain = len(name) <= LONGEST_NAME and name.isascii() and name.isprintable()
    return name if is_plain else f"a name of {len(name)} characters"


INTERNAL_ERROR = ItemError(500, "InternalError", "The model failed on this input; the server's log has the place.")
OUT_OF_MEMORY = ItemError(507, "OutOfMemory", "The model ran out of memory on this single input.")
OUT_OF_TIME = ItemError(
    503, "BatchTimeout", "The batch reached its time limit before this input ran; send fewer inputs at once, or retry."
)
EXPIRED = ItemError(504, "QueueTimeout", "The request reached its queue timeout and was not run; retry later.")


REASON_LENGTH = 240  # the most characters of a library's message


def reason(error: BaseException) -> str:
    """Return the line of an error that states the cause; libraries write pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # OpenVINO's reader of PyTorch and CUDA write more after the cause.
    named = [line for line in lines if line.startswith(("-- No conversion rule", "CUDA error: "))]
    named += [line for before, line in pairwise(lines) if before == "Exception:"]
    line = (named or lines[-1:] or [""])[0].removeprefix("-- ")
    line = line if len(line) <= REASON_LENGTH else line[:REASON_LENGTH] + "..."
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def where(error: BaseException) -> str:
    """Return an error's type and frames for the log, without its message, which may quote a payload."""
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join([type(error).__name__, *(f"{f.name} ({f.filename}:{f.lineno})" for f in reversed(frames))])
