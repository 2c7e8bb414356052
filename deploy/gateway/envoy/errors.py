"""Envoy's own answers (errors.yaml), in the form that their clients expect.

/predictions   {"code": 404, "type": "NotFound", "message": "..."}
/v2            {"error": "..."}
/v1, rerank    {"error": {"message": "...", "type": "...", "param": null, "code": "..."}}
gRPC           grpc-status and grpc-message
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from deploy.gateway.envoy.resources import Resource, filled
from deploy.gateway.envoy.routes import API_MODEL, API_PATHS
from deploy.gateway.settings import Key, Settings
from handlers.protocol.retrieval import error_document


def local_reply(settings: Settings, *, is_grpc: bool) -> Resource:
    """Make Envoy's local_reply_config."""
    limits = asdict(settings.limits)
    answers = {
        status: {name: _formatted(value, limits) for name, value in answer.items()}
        for status, answer in filled("errors").items()
    }
    mappers: list[Resource] = []
    for key in settings.keys:
        if (seconds := retry_after_s(key)) > 1:
            own = {**answers[429], "headers": {"Retry-After": str(seconds)}}
            mappers += _mappers(429, own, [_header("x-client", "exact", key.client)], is_grpc=is_grpc)
    for status, answer in answers.items():
        mappers += _mappers(status, answer, [], is_grpc=is_grpc)
    return {"mappers": mappers}


def retry_after_s(key: Key) -> int:
    """Return the seconds after which a client whose rate is exceeded has one request again."""
    return math.ceil(1 / key.requests_per_second) if key.requests_per_second else 1


def _mappers(status: int, answer: Mapping[str, Any], asked: list[Resource], *, is_grpc: bool) -> Iterator[Resource]:
    message, headers = answer["message"], answer.get("headers", {})
    of_status = {"default_value": status, "runtime_key": "gateway.status"}
    filters = [{"status_code_filter": {"comparison": {"op": "EQ", "value": of_status}}}, *asked]
    if is_grpc:
        yield _mapper(filters, message, "text/plain", {**headers, "grpc-status": str(answer["grpc"])})
        return
    is_api, is_v2 = (
        {"or_filter": {"filters": [_header(name, how, value) for name in (":path", "x-envoy-original-path")]}}
        for how, value in (("safe_regex", {"regex": API_PATHS}), ("prefix", "/v2"))
    )
    plain = {"code": status, "type": answer["type"], "message": message}
    api = {**answer, "param": None, **answer.get("api", {})}
    if "no_model" in answer:
        yield _api_mapper([*filters, is_api, _names_no_model()], status, {**api, **answer["no_model"]})
    yield _api_mapper([*filters, is_api], status, api)
    yield _mapper([*filters, is_v2], json.dumps({"error": message}), "application/json", headers)
    yield _mapper(filters, json.dumps(plain), "application/json", headers)


def _mapper(filters: list[Resource], body: str, content_type: str, headers: Mapping[str, str]) -> Resource:
    return {
        "filter": filters[0] if len(filters) == 1 else {"and_filter": {"filters": filters}},
        # A percent sign begins a command in Envoy's formats.
        "body_format_override": {
            "text_format_source": {"inline_string": body.replace("%", "%%")},
            "content_type": content_type,
        },
        "headers_to_add": [
            {"header": {"key": name, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
            for name, value in headers.items()
        ],
    }


def _header(name: str, how: str, value: Any) -> Resource:
    return {"header_filter": {"header": {"name": name, "string_match": {how: value}}}}


def _api_mapper(filters: list[Resource], status: int, answer: Mapping[str, Any]) -> Resource:
    document = error_document(status, answer["type"], answer["message"], answer["param"])
    return _mapper(filters, json.dumps(document), "application/json", answer.get("headers", {}))


def _names_no_model() -> Resource:
    """Match what the Lua filter found no model in."""
    value = {"string_match": {"exact": ""}}
    matcher = {"filter": API_MODEL, "path": [{"key": "model"}], "value": value}
    return {"metadata_filter": {"matcher": matcher, "match_if_key_not_found": False}}


def _formatted(value: Any, limits: Mapping[str, Any]) -> Any:
    """Put limits in the places of their names, wherever in an answer they stand."""
    if isinstance(value, dict):
        return {name: _formatted(each, limits) for name, each in value.items()}
    return value.format(**limits) if isinstance(value, str) else value
