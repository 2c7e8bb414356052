"""The access log: a line of JSON for each request, without a payload and without a key."""

from deploy.gateway.envoy.resources import Resource, typed
from deploy.gateway.envoy.routes import ABOUT

FILE = "access.log"
# Parts of Server-Timing; lua/http.lua takes them apart.
PARTS = ("total", "decode", "wait", "forward", "encode")


def access_log() -> list[Resource]:
    """Make Envoy's access_log."""
    fields = {
        "time": "%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)%",
        "client": "%DYNAMIC_METADATA(gateway:client)%",
        "address": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
        "method": "%REQ(:METHOD)%",
        "path": "%PATH(NQ:ORIG_OR_PATH)%",
        "protocol": "%PROTOCOL%",
        "status": "%RESPONSE_CODE%",
        "grpc_status": "%GRPC_STATUS_NUMBER%",
        "flags": "%RESPONSE_FLAGS%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "model": f"%METADATA(ROUTE:{ABOUT}:model)%",
        "version": "%RESP(X-MODEL-VERSION)%",
        "batch_size": "%DYNAMIC_METADATA(gateway:batch_size)%",
        **{f"{part}_ms": f"%DYNAMIC_METADATA(gateway:{part}_ms)%" for part in PARTS},
        "request_id": "%REQ(X-REQUEST-ID)%",
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
