"""The two small servers of the control process, both internal: Envoy's questions with the operator's, and Prometheus'.

settings.ports.control -> /v2, /inference.GRPCInferenceService, /control, the page at /
settings.ports.metrics -> /metrics, and /metrics/gateway without the nodes'
"""

from aiohttp import web

from deploy.gateway import page_routes
from deploy.gateway.control.errors import answer_errors
from deploy.gateway.control.gateway import Gateway
from deploy.gateway.control.grpc import Grpc
from deploy.gateway.control.http import Http
from deploy.gateway.control.operator import Operator
from deploy.gateway.control.repository import Repository

# Seconds that a request in flight has to end when the process does.
SHUTDOWN_S = 2.0


def control_app(gateway: Gateway) -> web.Application:
    """Make what listens on the control port."""
    app = web.Application(middlewares=[answer_errors])
    repository = Repository(gateway)
    Http(gateway, repository).add_routes(app)
    Grpc(gateway, repository).add_routes(app)
    Operator(gateway).add_routes(app)
    page_routes.add_routes(app, gateway.summary, lambda: gateway.fleet)
    return app


def metrics_app(gateway: Gateway) -> web.Application:
    """Make what listens on the metrics port."""

    async def metrics(_request: web.Request) -> web.Response:
        return _exposition(await gateway.metrics())

    async def own_metrics(_request: web.Request) -> web.Response:
        return _exposition(await gateway.own_metrics())

    app = web.Application(middlewares=[answer_errors])
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/metrics/gateway", own_metrics)
    return app


def _exposition(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/plain", charset="utf-8")


async def serve(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Listen; the caller cleans the runner up.

    Raises:
        OSError: the port is taken.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
