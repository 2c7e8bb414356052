"""gRPC: the Open Inference Protocol of deploy.frontend.grpc, and grpc.health.v1."""

from typing import Any

import grpc
from grpc import aio

from deploy.frontend.grpc import Service
from deploy.frontend.http import GRPC_METHODS
from deploy.protocol.description import SERVICE
from deploy.serve.app import Host

# HealthCheckResponse: its one field, as bytes.
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


async def start(host: Host, address: str) -> Any:
    """Start the server of an address."""
    most = host.models.body_bytes + 65536
    server = aio.server(options=[("grpc.max_receive_message_length", most), ("grpc.so_reuseport", 0)])
    service = Service(host.models)

    async def check(_: bytes, __: Any) -> bytes:
        return NOT_SERVING if host.is_draining else SERVING

    methods = {
        name: grpc.unary_unary_rpc_method_handler(getattr(service, name), response_serializer=bytes)
        for name in GRPC_METHODS
    }
    health = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    for name, handlers in ((SERVICE, methods), ("grpc.health.v1.Health", health)):
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    server.add_insecure_port(address)
    await server.start()
    return server
