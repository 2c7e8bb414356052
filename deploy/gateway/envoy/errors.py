"""The answers that Envoy gives itself, in the form that their clients expect.

/predictions   {"code": 404, "type": "NotFound", "message": "..."}
/v2            {"error": "..."}
gRPC           grpc-status and grpc-message
"""

import json
import math
from dataclasses import dataclass, replace

from deploy.gateway.envoy.resources import Resource
from deploy.gateway.settings import Key, Settings

# HTTP status -> gRPC status, as Triton has them.
GRPC = {400: 3, 401: 16, 403: 7, 404: 5, 408: 4, 413: 8, 415: 3, 429: 8, 431: 8, 500: 13, 502: 14, 503: 14, 504: 4}


@dataclass(frozen=True, slots=True)
class Answer:
    """One status that Envoy answers itself."""

    status: int
    type: str
    message: str
    headers: tuple[tuple[str, str], ...] = ()


def answers(settings: Settings) -> list[Answer]:
    """List what is answered by the gateway itself; limits stand in the messages."""
    limits = settings.limits
    return [
        Answer(
            400,
            "BadRequest",
            "The request is not valid HTTP, its path or its headers are not accepted, or its body cannot be inflated.",
        ),
        Answer(
            401,
            "Unauthorized",
            "A valid key is needed: Authorization: Bearer KEY.",
            (("WWW-Authenticate", 'Bearer realm="gateway"'),),
        ),
        Answer(403, "Forbidden", "This is not allowed."),
        Answer(404, "NotFound", "Neither this path nor this model is served."),
        Answer(
            408,
            "RequestTimeout",
            f"The head must come within {limits.header_s:g} s, the whole request within {limits.body_s:g} s.",
        ),
        Answer(
            413,
            "BodyTooLarge",
            f"A body may have {limits.body_bytes} bytes, decompressed too; a form that is "
            f"application/x-www-form-urlencoded {limits.form_bytes}.",
        ),
        Answer(415, "UnsupportedMedia", "This content type is not accepted here."),
        Answer(429, "TooManyRequests", "This key's rate is exceeded.", (("Retry-After", "1"),)),
        Answer(
            431,
            "HeadTooLarge",
            f"A head may have {limits.header_bytes} bytes and {limits.headers} headers.",
        ),
        Answer(500, "InternalError", "The gateway failed on this request."),
        Answer(502, "BadGateway", "A node gave no valid answer."),
        Answer(503, "Unavailable", "No node can take this request now, or the gateway has too many."),
        Answer(504, "ResponseTimeout", f"No answer came within {limits.response_s:g} s."),
    ]


def local_reply(settings: Settings, *, is_grpc: bool) -> Resource:
    """Make Envoy's local_reply_config."""
    mappers = []
    for key in settings.keys:
        if retry_after_s(key) > 1:
            mappers += _slow_key(key, settings, is_grpc=is_grpc)
    for answer in answers(settings):
        mappers += _mappers(answer, [_status(answer.status)], is_grpc=is_grpc)
    return {"mappers": mappers}


def retry_after_s(key: Key) -> int:
    """Seconds after which a client whose rate is exceeded has one request again."""
    return math.ceil(1 / key.requests_per_second) if key.requests_per_second else 1


def _slow_key(key: Key, settings: Settings, *, is_grpc: bool) -> list[Resource]:
    """Answer a client with less than a request a second, with a Retry-After of its own."""
    (usual,) = (answer for answer in answers(settings) if answer.status == 429)
    own = Answer(429, usual.type, usual.message, (("Retry-After", str(retry_after_s(key))),))
    return _mappers(own, [_status(429), _header("x-client", "exact", key.client)], is_grpc=is_grpc)


def _mappers(answer: Answer, filters: list[Resource], *, is_grpc: bool) -> list[Resource]:
    plain = {"code": answer.status, "type": answer.type, "message": answer.message}
    if is_grpc:
        own = replace(answer, headers=(*answer.headers, ("grpc-status", str(GRPC[answer.status]))))
        return [_mapper(own, filters, answer.message, "text/plain")]
    is_v2 = {"or_filter": {"filters": [_header(name, "prefix", "/v2") for name in (":path", "x-envoy-original-path")]}}
    return [
        _mapper(answer, [*filters, is_v2], json.dumps({"error": answer.message}), "application/json"),
        _mapper(answer, filters, json.dumps(plain), "application/json"),
    ]


def _mapper(answer: Answer, filters: list[Resource], body: str, content_type: str) -> Resource:
    mapper: Resource = {
        "filter": filters[0] if len(filters) == 1 else {"and_filter": {"filters": filters}},
        # A percent sign begins a command in Envoy's formats.
        "body_format_override": {
            "text_format_source": {"inline_string": body.replace("%", "%%")},
            "content_type": content_type,
        },
    }
    if answer.headers:
        mapper["headers_to_add"] = [
            {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
            for name, value in answer.headers
        ]
    return mapper


def _status(status: int) -> Resource:
    value = {"default_value": status, "runtime_key": "gateway.status"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _header(name: str, how: str, value: str) -> Resource:
    return {"header_filter": {"header": {"name": name, "string_match": {how: value}}}}
