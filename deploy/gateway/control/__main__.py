"""`python -m deploy.gateway.control CONFIG NODES_FILE STATE_DIR`: the control process, started by the gateway.

Two internal servers:

    settings.ports.control -> /v2, /inference.GRPCInferenceService, /control, the page at /
    settings.ports.metrics -> /metrics, and /metrics/gateway without the nodes'
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from aiohttp import web

from deploy.command import CommandParser, run_command
from deploy.gateway import metrics
from deploy.gateway.configuration import Configuration
from deploy.gateway.control.errors import answer_errors, reject_foreign
from deploy.gateway.control.gateway import GATEWAY, KNOWN, Control
from deploy.gateway.envoy import files
from deploy.gateway.envoy.process import Envoy
from deploy.gateway.supervisor import PROBLEM
from deploy.gateway.watch import read_known
from deploy.nodes.run.node import replace_file
from handlers.errors import InvalidConfig

# Seconds between two checks of gateway.yaml, nodes.json and the addresses of a name, and between two heartbeats.
CHECK_S = 1.0
SHUTDOWN_S = 2.0  # seconds that a request in flight may take after the SIGTERM
# Modules with `routes`; the page is optional.
ROUTES = ("protocol", "operator", "page")


def make_control_app(gateway: Control) -> web.Application:
    app = web.Application(middlewares=[answer_errors, reject_foreign])
    app[GATEWAY] = gateway
    for name in ROUTES:
        app.add_routes(import_module(f"deploy.gateway.control.{name}").routes)
    return app


def make_metrics_app(gateway: Control) -> web.Application:
    async def answer(request: web.Request) -> web.Response:
        text = await gateway.envoy_metrics() + metrics.render(gateway.fleet, gateway.traffic.texts)
        if request.path == "/metrics":
            text = metrics.merge(gateway.traffic.texts, text)
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    app = web.Application(middlewares=[answer_errors])
    app.add_routes([web.get("/metrics", answer), web.get("/metrics/gateway", answer)])
    return app


async def serve(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Listen; the caller cleans the runner up."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


async def control(config: Path, nodes_file: Path, state_dir: Path) -> None:
    supervisor = socket.socket(fileno=sys.stdin.fileno())
    # The socket is readable only when the supervisor has ended; the next control process needs the ports.
    asyncio.get_running_loop().add_reader(supervisor, os._exit, 1)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    nodes = tuple(read_known(state_dir / KNOWN))
    configuration = Configuration(config, nodes_file, nodes, state_dir=state_dir)
    try:
        settings = configuration.parse()
        if settings.discover is None:
            settings, nodes = configuration.read()
    except (InvalidConfig, OSError) as error:
        # A process that knows no keys admits no client. The supervisor tries again, and `check` fails until then.
        files.shut(state_dir)
        replace_file(state_dir / PROBLEM, f"{error}; every inference gets 503")
        raise
    # With `discover` the known nodes are used until the name is resolved, which may take a while.
    gateway = Control(settings, nodes, Envoy(state_dir), state_dir)

    async def follow() -> None:
        while True:
            if (changes := await asyncio.to_thread(configuration.read_changes)) is not None:
                gateway.configure(*changes)
            gateway.unapplied, gateway.is_shut = configuration.problem, configuration.is_shut
            gateway.update()
            await asyncio.sleep(CHECK_S)

    runners, following = [], asyncio.create_task(follow())
    try:
        await gateway.start()
        ports = settings.ports
        runners.append(await serve(make_control_app(gateway), ports.control_address, ports.control))
        runners.append(await serve(make_metrics_app(gateway), ports.internal_address, ports.metrics))
        while not (stopped.is_set() or following.done()):
            with suppress(OSError):
                supervisor.send(b".", socket.MSG_DONTWAIT)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), CHECK_S)
        if following.done():
            following.result()
    finally:
        for runner in runners:
            await runner.cleanup()
        following.cancel()
        await gateway.close()


def main(arguments: list[str]) -> int:
    parser = CommandParser(
        prog="python -m deploy.gateway.control", description="Run a gateway's control process, for its supervisor."
    )
    paths = {"config": "gateway.yaml", "nodes_file": "nodes.json", "state_dir": "folder for logs and saved state"}
    for name, words in paths.items():
        parser.add_argument(name, type=Path, metavar=name.upper(), help=words)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    process = control(options.config, options.nodes_file, options.state_dir)
    return run_command("gateway", lambda: asyncio.run(process), InvalidConfig, OSError)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
