"""Sends Envoy the endpoints of all clusters on one stream; each watched file would take one of 128 inotify instances.

    endpoints.json, after each change ─> AggregatedDiscoveryService, on a unix socket ─> Envoy

The supervisor serves it: a restarted Envoy gets its endpoints without the control process, too. Envoy keeps the last
endpoints while the stream is lost.
"""

import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from deploy.gateway.envoy.discovery_pb2 import ClusterLoadAssignment, DiscoveryRequest, DiscoveryResponse, Resource
from deploy.gateway.envoy.resources import TYPE

logger = logging.getLogger(__name__)

# Names in Envoy's working folder.
ENDPOINTS = "endpoints.json"
SOCKET = "discovery.sock"
KIND = TYPE + "envoy.config.endpoint.v3.ClusterLoadAssignment"  # the type of the resources
CHECK_S = 0.02  # seconds between two checks of the file
STREAMS = 8  # streams at once: Envoy's, and former ones that have not ended


class Discovery(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server of Envoy's endpoints, which follows their file."""

    def __init__(self, folder: Path) -> None:
        """Start it, or raise OSError; the folder's path may be longer than a socket's."""
        self._file, self._logged = folder / ENDPOINTS, ""
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._server = grpc.server(ThreadPoolExecutor(STREAMS), handlers=[self], options=unlimited)
        try:
            self._server.add_insecure_port(f"unix:/proc/self/fd/{self._folder}/{SOCKET}")
        except RuntimeError:
            os.close(self._folder)
            raise OSError(f"{folder / SOCKET}: cannot be opened; the disk may be full or read-only") from None
        (folder / SOCKET).chmod(0o600)
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()
        os.close(self._folder)

    def service(self, _: object) -> Any:
        """Answer every method: Envoy calls one."""
        return grpc.stream_stream_rpc_method_handler(
            self._follow, DiscoveryRequest.FromString, DiscoveryResponse.SerializeToString
        )

    def _follow(self, requests: Iterator[DiscoveryRequest], context: Any) -> Iterator[DiscoveryResponse]:
        """Yield all endpoints for each subscription, and after each change of their file."""
        arrived: SimpleQueue[DiscoveryRequest] = SimpleQueue()

        def receive() -> None:
            with suppress(grpc.RpcError):
                for each in requests:
                    arrived.put(each)

        Thread(target=receive, name="discovery", daemon=True).start()
        count, is_due, is_unconfirmed, sent = 0, False, False, None
        while context.is_active():
            with suppress(Empty):
                request = arrived.get(timeout=CHECK_S)
                # A request that Envoy sent before it had the last response is answered by that response.
                if request.response_nonce == (str(count) if count else ""):
                    # The first request with its number confirms or rejects it, and another subscribes to a cluster.
                    is_due |= not is_unconfirmed
                    is_unconfirmed = False
                    self._log(request.error_detail.message)
                continue
            with suppress(FileNotFoundError):
                found = self._file.stat()
                if is_due or (count and (found.st_ino, found.st_mtime_ns) != sent):
                    count += 1
                    yield read_endpoints(self._file, str(count))
                    is_due, is_unconfirmed, sent = False, True, (found.st_ino, found.st_mtime_ns)

    def _log(self, problem: str) -> None:
        """Log once that Envoy has rejected endpoints; the accepted ones replace them, and they are tried again."""
        if problem and problem != self._logged:
            logger.error("Envoy has rejected %s: %s", ENDPOINTS, " ".join(problem.split()))
            self._logged = problem


def read_endpoints(file: Path, nonce: str) -> DiscoveryResponse:
    document = json.loads(file.read_bytes())
    found = [ParseDict(each, ClusterLoadAssignment()).SerializeToString() for each in document["resources"]]
    resources = [Resource(type_url=KIND, value=each) for each in found]
    return DiscoveryResponse(version_info=document["version_info"], resources=resources, type_url=KIND, nonce=nonce)
