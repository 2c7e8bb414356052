"""Errors as gRPC's clients read them, of a worker and of whatever else answers behind the gateway. Pure.

    an error's HTTP status -> code_of -> gRPC's code
    that and a message     -> error_headers -> X-Grpc-Status, X-Grpc-Message, of which Envoy makes a gRPC status
    a request's errors     -> GrpcErrors -> Reply

https://github.com/grpc/grpc/blob/master/doc/statuscodes.md lists the codes, and PROTOCOL-HTTP2.md there how a message
is written. It imports no protobuf.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from handlers.protocol.responses import Reply

# The media type of requests that Envoy's bridge makes of gRPC calls, and of their answers.
PROTOBUF = "application/x-protobuf"
STATUS_HEADER, MESSAGE_HEADER = "X-Grpc-Status", "X-Grpc-Message"

INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 3, 4, 5, 7, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 12, 13, 14, 16
# The codes that Triton answers with, where it has such an error. handlers.errors has the HTTP statuses.
_CODES = {
    401: UNAUTHENTICATED,
    403: PERMISSION_DENIED,
    404: NOT_FOUND,
    405: UNIMPLEMENTED,
    413: RESOURCE_EXHAUSTED,
    429: UNAVAILABLE,
    500: INTERNAL,
    501: UNIMPLEMENTED,
    502: UNAVAILABLE,
    503: UNAVAILABLE,
    504: DEADLINE_EXCEEDED,
    507: RESOURCE_EXHAUSTED,
}

# gRPC's own clients take 8 KiB of all headers together; a character outside ASCII takes up to twelve bytes.
MOST_CHARACTERS = 500
# What stands for itself in a message: printable ASCII but %.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def code_of(status: int) -> int:
    """Give gRPC's code of an HTTP status, 400 or more."""
    return _CODES.get(status, INVALID_ARGUMENT if status < 500 else INTERNAL)


def error_headers(status: int, message: str) -> dict[str, str]:
    """Write an error for Envoy.

    Args:
        status: the HTTP status, 400 or more.
        message: one sentence for people; what is beyond MOST_CHARACTERS is cut off.
    """
    text = quote(message[:MOST_CHARACTERS], safe=_PLAIN, errors="replace")
    return {STATUS_HEADER: str(code_of(status)), MESSAGE_HEADER: text}


@dataclass(frozen=True, slots=True)
class GrpcErrors:
    """The form of an answer to a gRPC request that fails whole; see `handlers.protocol.responses.Form`."""

    def pack(self, results: Sequence[Any]) -> Reply:
        """See `Form`; the first of the results is an ItemError."""
        first, *_ = results
        return Reply(first.code, b"", PROTOBUF, error_headers(first.code, first.message))
