"""The applications that the configuration names: `archive` at /predictions/M, and `routes` at /."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import grpc
import ray
from grpc.aio._server import Server
from ray import serve
from ray._common.network_utils import is_localhost
from ray.exceptions import RayError
from ray.serve._private import constants
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.util.metrics import Counter

from deploy.hosts.frontend.http import Response, reject
from deploy.hosts.frontend.replica import Metrics, Replica
from deploy.protocol.rejections import BUSY, NOT_READY
from torchserve_client.payloads import Json


def bind_grpc() -> list[object]:
    """Keep gRPC's ports on loopback if the node is there, not on Serve's [::]; Serve calls it before it opens ports."""
    if is_localhost(ray.util.get_node_ip_address()):
        add = Server.add_insecure_port
        Server.add_insecure_port = lambda self, address: add(self, address.replace("[::]", "127.0.0.1"))
    return []


class ExportedCounter(NamedTuple):
    """A handler's counter in Ray's Prometheus export."""

    counter: Counter
    labels: tuple[str, ...]

    def add_or_update(self, value: float, labels: Sequence[str]) -> None:
        if value > 0:  # Ray rejects an increment of 0
            self.counter.inc(value, dict(zip(self.labels, labels, strict=True)))


@serve.deployment(name="archive")
@serve.ingress()
class Archive:
    """A replica of one archive."""

    def __init__(self, archive: str, threads: int, gpu: bool) -> None:
        metrics = Metrics(lambda name, labels: ExportedCounter(Counter(name, tag_keys=labels), labels))
        # Ray shows an actor its own devices, from 0 on.
        self._replica = Replica(archive, threads=threads, gpu=0 if gpu else None, metrics=metrics)

    def __serve_build_asgi_app__(self) -> Any:
        # It imports `handlers`, which is the archive's own now.
        from deploy.hosts.frontend.routes import Models, Routes  # noqa: PLC0415

        replica = self._replica
        return Routes(Models({replica.name: replica.answer}, None, replica.max_body_bytes), close=replica.close)

    async def predict(self, *request: Any) -> Response | None:
        """Answer a request of `routes`."""
        return await self._replica.answer(*request)

    async def check_health(self) -> None:
        """Raise an exception if Serve is to replace this replica."""
        await self._replica.check()


def archive(args: Json) -> serve.Application:
    """Build the application of one archive; `args` are those of `Archive`, and `host`."""
    return _bind(Archive, **args)


def _bind(deployment: serve.Deployment, host: str, **args: Any) -> serve.Application:
    node = ray.util.get_node_ip_address()
    if is_localhost(host) and not (is_localhost(node) and constants.RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH):
        raise ValueError(f"host is {host}, but Ray listens on {node}: start Ray with the variables of ray.env")
    return deployment.bind(**args)


def routes(args: Json) -> serve.Application:
    """Build the application at /."""
    from deploy.hosts.frontend.grpc import Service  # noqa: PLC0415
    from deploy.hosts.frontend.routes import Models, Routes  # noqa: PLC0415

    @serve.deployment(name="routes")
    @serve.ingress()
    class Front(Service):
        def __init__(self, models: list[str], invocations: str | None, body_bytes: int, **more: Any) -> None:
            handles = {name: serve.get_deployment_handle("archive", app_name=name) for name in models}
            calls = {name: partial(_predict, name, handle) for name, handle in handles.items()}
            super().__init__(Models(calls, invocations, body_bytes, **more))

        def __serve_build_asgi_app__(self) -> Routes:
            return Routes(self.models)

    return _bind(Front, **args)


async def _predict(name: str, handle: serve.handle.DeploymentHandle, *request: Any) -> Response | None:
    try:
        return await handle.predict.remote(*request)  # type: ignore[no-any-return]
    except BackPressureError:
        return reject(BUSY.saying(f"Model {name} has too many requests."))
    except (RayError, RayServeException):
        return reject(NOT_READY.saying(f"Model {name} has no replica that answers."))


def add_servicer(_: object, server: Server) -> None:
    """Add Triton's service to Serve's gRPC server, which calls the application's methods with messages as bytes."""
    from handlers.protocol.wire import GRPC_METHODS, SERVICE  # noqa: PLC0415 - an archive has its own

    handlers = {name: grpc.unary_unary_rpc_method_handler(lambda *_: None) for name in GRPC_METHODS}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
