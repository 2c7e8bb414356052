"""The access log: a JSON line for each request, with the gateway's names, and without payload, query and key."""

import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from deploy.hosts.frontend.http import Message, Response, headers_of

logger = logging.getLogger(__name__)

REQUEST_ID = b"x-request-id"
_USUAL = re.compile(r"[!-~]{1,128}")
TIMES = re.compile(r"(\w+);dur=([\d.]+)")
_IDS = Random()  # noqa: S311 - no secret; a task may seed the module's own
_BATCH = re.compile(r'batch;desc="(\d+)"')


def id_of(sent: str) -> str:
    """Return the id that a client has given its request, or a new one."""
    return sent if sent and _USUAL.fullmatch(sent) else f"{_IDS.getrandbits(128):032x}"


class AccessLog:
    """Lines of all processes of one host: each is one write at the end of the file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._has_failed = False

    def note(self, scope: Message, answer: Response, request_id: str, began_s: float) -> None:
        headers, timing = headers_of(scope), answer.headers.get("Server-Timing", "")
        batch = _BATCH.search(timing)
        self._write({
            "client": (scope.get("client") or ("",))[0], "method": scope["method"][:64], "path": scope["path"][:256],
            "protocol": f"HTTP/{scope.get('http_version', '1.1')}", "status": answer.status,
            "version": answer.headers.get("X-Model-Version"), "batch_size": batch and int(batch[1]),
            **{f"{name}_ms": float(value) for name, value in TIMES.findall(timing)}, "request_id": request_id,
            "trace_id": _trace_of(headers), "bytes_in": int(headers.get("content-length") or 0),
            "bytes_out": len(answer.body), "duration_ms": round(1000 * (time.perf_counter() - began_s), 2),
        })  # fmt: skip

    def note_call(self, context: object, method: str, sizes: Sequence[int], request_id: str, began_s: float) -> None:
        """Write the line of a call by gRPC."""
        code, metadata = context.code(), dict(context.invocation_metadata())  # type: ignore[attr-defined]
        self._write({
            "client": context.peer(), "method": "POST", "path": method, "protocol": "HTTP/2",  # type: ignore[attr-defined]
            "status": 200, "grpc_status": code.value[0] if code else 0, "request_id": request_id,
            "trace_id": _trace_of(metadata), "bytes_in": sizes[0], "bytes_out": sizes[1],
            "duration_ms": round(1000 * (time.perf_counter() - began_s), 2),
        })  # fmt: skip

    def _write(self, line: Mapping[str, object]) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        try:
            os.write(self._file, json.dumps({"time": now, **line, "process": os.getpid()}).encode() + b"\n")
            self._has_failed = False
        except OSError as error:  # a full disk must not fail requests
            if not self._has_failed:
                logger.warning("the access log lacks lines: %s", error.strerror)
            self._has_failed = True


def _trace_of(headers: Mapping[str, str]) -> str | None:
    found = re.fullmatch(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", headers.get("traceparent", ""))
    return found and found[1]
