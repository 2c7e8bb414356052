"""The meaning of each HTTP status in gRPC and in OpenAI's API, for every host and Envoy. Pure.

https://github.com/grpc/grpc/blob/master/doc/statuscodes.md has gRPC's codes. Where Triton has such an error, its code
counts.
"""

from typing import NamedTuple

# gRPC's codes.
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
UNAUTHENTICATED = 16

# OpenAI's types of most errors.
INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


class Meaning(NamedTuple):
    grpc: int
    openai: str


STATUSES = {
    401: Meaning(UNAUTHENTICATED, "authentication_error"),
    403: Meaning(PERMISSION_DENIED, "permission_error"),
    404: Meaning(NOT_FOUND, "not_found_error"),
    405: Meaning(UNIMPLEMENTED, INVALID_REQUEST),
    408: Meaning(DEADLINE_EXCEEDED, INVALID_REQUEST),
    409: Meaning(FAILED_PRECONDITION, INVALID_REQUEST),  # a retry is in vain, unlike with ABORTED
    413: Meaning(RESOURCE_EXHAUSTED, INVALID_REQUEST),  # as gRPC's own limit of a message
    # google.rpc.Code's. UNAVAILABLE is 503 alone: a policy of retries would double what a rate limits.
    429: Meaning(RESOURCE_EXHAUSTED, "rate_limit_error"),
    431: Meaning(RESOURCE_EXHAUSTED, INVALID_REQUEST),  # as gRPC's own limit of metadata
    500: Meaning(INTERNAL, SERVER_ERROR),
    501: Meaning(UNIMPLEMENTED, SERVER_ERROR),
    502: Meaning(UNAVAILABLE, SERVER_ERROR),  # as gRPC's own clients read a proxy's 502
    503: Meaning(UNAVAILABLE, SERVER_ERROR),  # Triton's, of a full queue
    504: Meaning(DEADLINE_EXCEEDED, SERVER_ERROR),
    507: Meaning(RESOURCE_EXHAUSTED, SERVER_ERROR),  # Triton's UNAVAILABLE would be tried again, in vain
}
_CLIENT, _SERVER = Meaning(INVALID_ARGUMENT, INVALID_REQUEST), Meaning(INTERNAL, SERVER_ERROR)


def meaning_of(status: int) -> Meaning:
    """Return the meaning of an HTTP status from 400 on."""
    return STATUSES.get(status, _CLIENT if status < 500 else _SERVER)
