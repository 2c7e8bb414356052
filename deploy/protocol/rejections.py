"""Rejections by hosts themselves: Envoy, one process and Ray have the same statuses, types and words. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

RETRY = {"Retry-After": "1"}


class Rejection(NamedTuple):
    status: int
    type: str
    message: str  # of a gateway, which fills its limits into the braces
    headers: Mapping[str, str] = {}

    def saying(self, message: str, **headers: str) -> "Rejection":
        """Return the rejection of a host that knows more."""
        return self._replace(message=message, headers={**self.headers, **headers})


BAD_REQUEST = Rejection(
    *(400, "BadRequest"),
    "The request is not valid HTTP, its path or its headers are not accepted, or its body cannot be inflated.",
)
MALFORMED_FORM = Rejection(
    *(400, "MalformedForm"),
    "Each field of a form or a query needs a unique name, and each part of a form a boundary and its headers.",
)
MISSING_MODEL = Rejection(400, "MissingModel", 'The body must be a JSON object with "model", the name of a model.')
UNNAMED = MISSING_MODEL.saying("/invocations names no model: add ?model_name=MODEL, or set invocations")
UNAUTHORIZED = Rejection(
    *(401, "Unauthorized", "A valid key is needed: Authorization: Bearer KEY."),
    {"WWW-Authenticate": 'Bearer realm="gateway"'},
)
NOT_FOUND = Rejection(404, "NotFound", "This path or this model is not served.")
UNKNOWN_MODEL = Rejection(404, "model_not_found", "Unknown model; GET /v1/models lists the models.")
LATE = Rejection(
    *(408, "RequestTimeout"), "The headers must arrive within {header_s:g} s, the whole request within {body_s:g} s."
)
BODY_TOO_LARGE = Rejection(
    *(413, "BodyTooLarge"),
    "A body may have {body_bytes} bytes, decompressed too; a form {form_parts} parts, and {form_bytes} bytes "
    "if it is application/x-www-form-urlencoded.",
)
UNSUPPORTED = Rejection(
    *(415, "UnsupportedMedia"),
    "This content type or Content-Encoding is not accepted here, or a multipart form lacks a boundary.",
)
TOO_MANY = Rejection(429, "TooManyRequests", "This key's rate is exceeded.", RETRY)
HEAD_TOO_LARGE = Rejection(
    *(431, "HeadTooLarge"),
    "The headers may have {header_bytes} bytes and number {headers}, and a path with its query {path_bytes} bytes.",
)
UNAVAILABLE = Rejection(
    *(503, "Unavailable"), "No node can accept this request now, or the gateway has too many requests.{lost}", RETRY
)
# Of one process and Ray, in TorchServe's words.
BUSY = Rejection(503, "ServiceUnavailableException", "The server holds too many bytes of requests.", RETRY)
NOT_READY = Rejection(503, "ModelNotReady", "The model is not ready.", RETRY)
DRAINING = Rejection(503, "Draining", "This process is about to end.", RETRY)
FAILED = Rejection(500, "InternalServerException", "The server failed.")

# Envoy's own responses by their status; MALFORMED_FORM and MISSING_MODEL are further ones of 400.
OF_ENVOY = (
    *(BAD_REQUEST, UNAUTHORIZED, Rejection(403, "Forbidden", "This is not allowed."), NOT_FOUND, LATE, BODY_TOO_LARGE),
    UNSUPPORTED,
    TOO_MANY,
    HEAD_TOO_LARGE,
    Rejection(500, "InternalError", "The gateway failed on this request."),
    Rejection(502, "BadGateway", "A node returned no valid response."),
    UNAVAILABLE,
    Rejection(504, "ResponseTimeout", "No response arrived within {response_s:g} s."),
)
# Envoy's responses on the paths of the APIs of embedding servers, where they differ; OpenAI's clients would retry 504.
OF_APIS: Mapping[int, Mapping[str, Any]] = {
    404: UNKNOWN_MODEL._asdict(),
    413: {"message": "A body may have {api_body_bytes} bytes here, decompressed too."},
    504: {"headers": {"X-Should-Retry": "false"}},
}
# A node's own response, whose text may quote a request -> the gateway's status and words.
OF_NODES = {
    400: (400, "The request is invalid."),
    404: (503, "The node does not serve this model at the moment."),  # it has restarted, or the model was just removed
    413: (413, "The body is larger than the node's max_request_size."),
    429: (429, "The model has too many requests."),
    500: (500, "The worker died, or did not answer in time."),
    502: (502, "The node returned no valid response."),
    503: (503, "The model's queue is full, or none of its workers is up."),
    507: (507, "The worker ran out of memory."),
}
