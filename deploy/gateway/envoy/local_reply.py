"""Envoy's own responses (deploy.protocol.rejections), in the error format of each API.

/predictions   {"code": 404, "type": "NotFound", "message": "..."}
/v2            {"error": "..."}
/v1, rerank    {"error": {"message": "...", "type": "...", "param": null, "code": "..."}}
gRPC           grpc-status and grpc-message
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from deploy.gateway.envoy.resources import Resource
from deploy.gateway.envoy.routes import API_MODEL, API_PATHS
from deploy.gateway.settings import GatewaySettings, Key
from deploy.protocol import rejections
from deploy.protocol.rejections import Rejection
from handlers.protocol.api_forms import error_document
from handlers.protocol.statuses import meaning_of
from handlers.protocol.wire import BUDGET_HEADER, CLIENT_HEADER, ORIGINAL_PATH_HEADER, PATH_BYTES

OVER_TOKENS = 402  # of the filter of tokens, in listener.yaml; clients get 429
# In a message, the reason why a node will not restore the model, if it will not (routes.py).
LOST, LOSS = "<lost>", "%METADATA(ROUTE:gateway.route:lost)%"


def make_local_reply(settings: GatewaySettings, *, is_grpc: bool) -> Resource:
    """Make Envoy's local_reply_config: the first mapper that matches makes the response."""
    make = _grpc_mappers if is_grpc else _http_mappers
    limits = {**asdict(settings.limits), "lost": LOST, "path_bytes": PATH_BYTES}
    replies: list[tuple[list[Resource], Rejection]] = [([_noted("gateway", "form", "400")], rejections.MALFORMED_FORM)]
    for rejection in rejections.OF_ENVOY:
        if rejection is rejections.TOO_MANY:
            for key in settings.keys:
                if (seconds := compute_retry_after_s(key)) > 1:
                    is_client = _header(CLIENT_HEADER, "exact", key.client)
                    replies.append(([is_client], rejection.saying(rejection.message, **{"Retry-After": str(seconds)})))
        replies.append(([], rejection))
    mappers = [make([_status(rejection.status), *filters], rejection, limits) for filters, rejection in replies]
    for key in settings.keys:
        if most := key.tokens_per_minute:
            message = f"This key's tokens_per_minute, {most}, are used up."
            rejection = rejections.TOO_MANY.saying(message, **{BUDGET_HEADER: str(most)})
            made = make([_status(OVER_TOKENS), _header(CLIENT_HEADER, "exact", key.client)], rejection, limits)
            mappers.append({**each, "status_code": rejection.status} for each in made)
    return {"mappers": [each for made in mappers for each in made]}


def compute_retry_after_s(key: Key) -> int:
    """Return the seconds until a client over its rate may send one request."""
    return math.ceil(1 / key.requests_per_second) if key.requests_per_second else 1


def _grpc_mappers(filters: list[Resource], rejection: Rejection, limits: Resource) -> Iterator[Resource]:
    headers = {**rejection.headers, "grpc-status": str(meaning_of(rejection.status).grpc)}
    yield _mapper(filters, rejection.message.format(**limits), "text/plain", headers)


def _http_mappers(filters: list[Resource], rejection: Rejection, limits: Resource) -> Iterator[Resource]:
    is_api, is_v2, is_cohere = (
        {"or_filter": {"filters": [_header(name, how, value) for name in (":path", ORIGINAL_PATH_HEADER)]}}
        for how, value in (
            ("safe_regex", {"regex": API_PATHS}),
            ("prefix", "/v2"),
            ("safe_regex", {"regex": r"/v[12]/embed(\?.*)?"}),
        )
    )
    status = rejection.status
    api_replies = [([*filters, is_api], rejection._replace(**rejections.OF_APIS.get(status, {})))]
    if rejection is rejections.BAD_REQUEST:
        # For a body in which the Lua filter found no model.
        api_replies.insert(0, ([*filters, is_api, _noted(API_MODEL, "model", "")], rejections.MISSING_MODEL))
    for matched, (_, kind, words, headers) in api_replies:
        param = "model" if kind in (rejections.MISSING_MODEL.type, rejections.UNKNOWN_MODEL.type) else None
        for more, form in (([is_cohere], "cohere"), ([], "")):
            document = error_document(status, kind, words.format(**limits), param, form)
            yield _mapper([*matched, *more], json.dumps(document), "application/json", headers)
    message = rejection.message.format(**limits)
    yield _mapper([*filters, is_v2], json.dumps({"error": message}), "application/json", rejection.headers)
    plain = {"code": status, "type": rejection.type, "message": message}
    yield _mapper(filters, json.dumps(plain), "application/json", rejection.headers)


def _mapper(filters: list[Resource], body: str, content_type: str, headers: Mapping[str, str]) -> Resource:
    return {
        "filter": filters[0] if len(filters) == 1 else {"and_filter": {"filters": filters}},
        # A percent sign starts a command in Envoy's formats.
        "body_format_override": {
            "text_format_source": {"inline_string": body.replace("%", "%%").replace(LOST, LOSS)},
            "omit_empty_values": True,
            "content_type": content_type,
        },
        "headers_to_add": [
            {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
            for name, value in headers.items()
        ],
    }


def _status(status: int) -> Resource:
    value = {"default_value": status, "runtime_key": "gateway.status"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _header(name: str, how: str, value: object) -> Resource:
    return {"header_filter": {"header": {"name": name, "string_match": {how: value}}}}


def _noted(filter_name: str, key: str, value: str) -> Resource:
    """Match what a Lua filter has noted about the request."""
    matcher = {"filter": filter_name, "path": [{"key": key}], "value": {"string_match": {"exact": value}}}
    return {"metadata_filter": {"matcher": matcher, "match_if_key_not_found": False}}
