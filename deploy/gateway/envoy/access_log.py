"""The access log: a line of JSON for each request, without a payload and without a key."""

from deploy.gateway.envoy.resources import Resource, typed
from deploy.gateway.envoy.routes import ABOUT

FILE = "access.log"
# Parts of Server-Timing; `notes` takes them apart.
# The most characters of what clients choose: a line of the log is bounded, though its request was refused.
PATH, NAME, TRACE = 256, 64, 32
PARTS = ("total", "decode", "wait", "forward", "encode")


def notes() -> Resource:
    """Make the filter that notes for the log whose a request is, and takes a worker's Server-Timing apart."""
    patterns = {"batch_size": r'batch;desc="(\d+)"', **{f"{part}_ms": rf"\b{part};dur=([\d.]+)" for part in PARTS}}
    rules = [
        {
            "header": "server-timing",
            "on_header_present": {
                "metadata_namespace": "gateway",
                "key": key,
                "type": "NUMBER",
                "regex_value_rewrite": {"pattern": {"regex": f".*{pattern}.*"}, "substitution": r"\1"},
            },
        }
        for key, pattern in patterns.items()
    ]
    client = {"metadata_namespace": "gateway", "key": "client", "type": "STRING"}
    # The trace of W3C's traceparent, which goes to the node as it came: https://www.w3.org/TR/trace-context/
    trace = {
        "metadata_namespace": "gateway",
        "key": "trace_id",
        "type": "STRING",
        "regex_value_rewrite": {
            "pattern": {"regex": "^00-([0-9a-f]+)-.*$"},
            "substitution": r"\1",
        },
    }
    return typed(
        "gateway.notes",
        "envoy.extensions.filters.http.header_to_metadata.v3.Config",
        # Before the router takes the first away.
        request_rules=[
            {"header": "x-client", "on_header_present": client},
            {"header": "traceparent", "on_header_present": trace},
        ],
        response_rules=rules,
    )


def access_log() -> list[Resource]:
    """Make Envoy's access_log."""
    fields = {
        "time": "%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)%",
        "client": "%DYNAMIC_METADATA(gateway:client)%",
        "address": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
        "method": f"%REQ(:METHOD):{NAME}%",
        "path": f"%PATH(NQ:ORIG_OR_PATH):{PATH}%",
        "protocol": "%PROTOCOL%",
        "status": "%RESPONSE_CODE%",
        "grpc_status": "%GRPC_STATUS_NUMBER%",
        "flags": "%RESPONSE_FLAGS%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "model": f"%METADATA(ROUTE:{ABOUT}:model)%",
        "version": f"%RESP(X-MODEL-VERSION):{NAME}%",
        "batch_size": "%DYNAMIC_METADATA(gateway:batch_size)%",
        **{f"{part}_ms": f"%DYNAMIC_METADATA(gateway:{part}_ms)%" for part in PARTS},
        "request_id": f"%REQ(X-REQUEST-ID):{NAME}%",
        "trace_id": f"%DYNAMIC_METADATA(gateway:trace_id):{TRACE}%",
        "bytes_in": "%BYTES_RECEIVED%",
        "bytes_out": "%BYTES_SENT%",
        "duration_ms": "%DURATION%",
        "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "node": "%UPSTREAM_HOST_NAME_WITHOUT_PORT%",
    }
    return [
        typed(
            "envoy.access_loggers.file",
            "envoy.extensions.access_loggers.file.v3.FileAccessLog",
            path=FILE,
            log_format={"json_format": fields},
        )
    ]
