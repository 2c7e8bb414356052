"""Envoy's own responses (local_reply.yaml), in the error format of each API.

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

from deploy.gateway.envoy.resources import Resource, fill_template
from deploy.gateway.envoy.routes import API_MODEL, API_PATHS
from deploy.gateway.settings import GatewaySettings, Key
from handlers.protocol.api_forms import error_document

# In a message, the reason why a node will not restore the model, if it will not (routes.py).
LOST, LOSS = "<lost>", "%METADATA(ROUTE:gateway.route:lost)%"


def make_local_reply(settings: GatewaySettings, *, is_grpc: bool) -> Resource:
    """Make Envoy's local_reply_config: the first mapper that matches makes the response."""
    answers = fill_template("local_reply")
    make = _grpc_mappers if is_grpc else _http_mappers
    limits = {**asdict(settings.limits), "lost": LOST}
    mappers: list[Resource] = []
    for key in settings.keys:
        if (seconds := compute_retry_after_s(key)) > 1:
            own = {**answers[429], "headers": {"Retry-After": str(seconds)}}
            mappers += make([_status(429), _header("x-client", "exact", key.client)], 429, own, limits)
    for name, answer in answers.items():
        status = answer.get("status", name)
        mappers += make([_status(status), *answer.get("filters", [])], status, answer, limits)
    return {"mappers": mappers}


def compute_retry_after_s(key: Key) -> int:
    """Return the seconds until a client over its rate may send one request."""
    return math.ceil(1 / key.requests_per_second) if key.requests_per_second else 1


def _grpc_mappers(filters: list[Resource], _: int, answer: Resource, limits: Resource) -> Iterator[Resource]:
    headers = {**answer.get("headers", {}), "grpc-status": str(answer["grpc"])}
    yield _mapper(filters, answer["message"].format(**limits), "text/plain", headers)


def _http_mappers(filters: list[Resource], status: int, answer: Resource, limits: Resource) -> Iterator[Resource]:
    is_api, is_v2, is_cohere = (
        {"or_filter": {"filters": [_header(name, how, value) for name in (":path", "x-envoy-original-path")]}}
        for how, value in (
            ("safe_regex", {"regex": API_PATHS}),
            ("prefix", "/v2"),
            ("safe_regex", {"regex": r"/v[12]/embed(\?.*)?"}),
        )
    )
    api = {**answer, "param": None, **answer.get("api", {})}
    api_mappers = [([*filters, is_api], api)]
    if "no_model" in answer:
        # For a body in which the Lua filter found no model.
        matcher = {"filter": API_MODEL, "path": [{"key": "model"}], "value": {"string_match": {"exact": ""}}}
        is_nameless = {"metadata_filter": {"matcher": matcher, "match_if_key_not_found": False}}
        api_mappers.insert(0, ([*filters, is_api, is_nameless], {**api, **answer["no_model"]}))
    for matched, each in api_mappers:
        words = (status, each["type"], each["message"].format(**limits), each["param"])
        for more, form in (([is_cohere], "cohere"), ([], "")):
            document = error_document(*words, form)
            yield _mapper([*matched, *more], json.dumps(document), "application/json", each.get("headers", {}))
    message, headers = answer["message"].format(**limits), answer.get("headers", {})
    yield _mapper([*filters, is_v2], json.dumps({"error": message}), "application/json", headers)
    plain = {"code": status, "type": answer["type"], "message": message}
    yield _mapper(filters, json.dumps(plain), "application/json", headers)


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


def _header(name: str, how: str, value: Any) -> Resource:
    return {"header_filter": {"header": {"name": name, "string_match": {how: value}}}}
