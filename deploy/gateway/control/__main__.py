"""`python -m deploy.gateway.control CONFIG NODES RUN`: the control process, as the gateway starts it.

Two servers, both internal:

    settings.ports.control -> /v2, /inference.GRPCInferenceService, /control, the page at /
    settings.ports.metrics -> /metrics, and /metrics/gateway without the nodes'

It ends with a SIGTERM, or with the process that started it, which is at the other end of a socket: standard input.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from deploy.gateway import metrics
from deploy.gateway.control import operator, page, protocol
from deploy.gateway.control.errors import answer_errors, refuse_foreign
from deploy.gateway.control.gateway import GATEWAY, KNOWN, Gateway
from deploy.gateway.envoy.process import Envoy
from deploy.gateway.nodes import read_known
from deploy.gateway.settings import Configuration, read
from handlers.errors import InvalidConfig

# Seconds between two looks at gateway.yaml, nodes.json and what a name resolves to, and between two signs of life.
LOOK_S = 1.0
# Seconds that a request in flight has to end when the process does.
SHUTDOWN_S = 2.0


def control_app(gateway: Gateway) -> web.Application:
    """Make what listens on the control port."""
    app = web.Application(middlewares=[answer_errors, refuse_foreign])
    app[GATEWAY] = gateway
    for module in (protocol, operator, page):
        app.add_routes(module.routes)
    return app


def metrics_app(gateway: Gateway) -> web.Application:
    """Make what listens on the metrics port."""

    async def of_gateway(request: web.Request) -> web.Response:
        text = await gateway.envoy_metrics() + metrics.own(gateway.fleet, gateway.traffic.texts)
        if request.path == "/metrics":
            text = metrics.merge(gateway.traffic.texts, text)
        return web.Response(text=text, content_type="text/plain", charset="utf-8")

    app = web.Application(middlewares=[answer_errors])
    app.add_routes([web.get("/metrics", of_gateway), web.get("/metrics/gateway", of_gateway)])
    return app


async def serve(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Listen; the caller cleans the runner up.

    Raises:
        OSError: the port is taken.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


async def control(config: Path, nodes_file: Path, run: Path) -> None:
    """Serve until a SIGTERM.

    Raises:
        InvalidConfig: the settings cannot be read.
        OSError: a port is taken, or Envoy's files cannot be written.
    """
    life = socket.socket(fileno=sys.stdin.fileno())
    # Nothing ever comes but its end; whoever supervises next needs the ports.
    asyncio.get_running_loop().add_reader(life, os._exit, 1)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    settings, nodes = read(config), tuple(read_known(run / KNOWN))
    configuration = Configuration(config, nodes_file, nodes)
    if settings.discover is None:
        settings, nodes = configuration.read()
    # Nodes of a name are those that were known until it is resolved: a name server may take its time.
    gateway = Gateway(settings, nodes, Envoy(run), run)

    async def follow() -> None:
        while True:
            if (changed := await asyncio.to_thread(configuration.changed)) is not None:
                gateway.configure(*changed)
            gateway.unapplied, gateway.is_shut = configuration.problem, configuration.is_shut
            gateway.update()
            await asyncio.sleep(LOOK_S)

    runners, following = [], asyncio.create_task(follow())
    try:
        await gateway.start()
        ports = settings.ports
        runners.append(await serve(control_app(gateway), ports.control_address, ports.control))
        runners.append(await serve(metrics_app(gateway), ports.internal_address, ports.metrics))
        while not (stopped.is_set() or following.done()):
            with suppress(OSError):
                life.send(b".", socket.MSG_DONTWAIT)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), LOOK_S)
        if following.done():
            following.result()
    finally:
        for runner in runners:
            await runner.cleanup()
        following.cancel()
        await gateway.close()


def main(arguments: list[str]) -> int:
    """Run it with these files, gateway.yaml and nodes.json, and the run folder; 1 with one line when it fails."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.gateway.control",
        description="Run a gateway's control process; its supervisor starts it.",
    )
    for name, words in (("config", "gateway.yaml"), ("nodes", "nodes.json"), ("run", "folder for logs and state")):
        parser.add_argument(name, type=Path, help=words)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(control(options.config, options.nodes, options.run))
    except (InvalidConfig, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
