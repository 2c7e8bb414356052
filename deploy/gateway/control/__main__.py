"""`python -m deploy.gateway.control`: the control process, as the gateway starts it.

It ends with a SIGTERM, or with the process that started it.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from deploy.gateway.configuration import Configuration
from deploy.gateway.control.app import control_app, metrics_app, serve
from deploy.gateway.control.edge import EnvoyEdge
from deploy.gateway.control.gateway import Gateway
from deploy.gateway.supervisor import ALIVE
from handlers.errors import InvalidConfig

logger = logging.getLogger(__name__)

# Seconds between two looks at gateway.yaml, nodes.json and what a name resolves to, and at the process that started
# this one.
LOOK_S = 1.0
# Seconds in which the name of the nodes may be resolved before the gateway starts without any.
FIRST_S = 3.0


async def control(configuration: Configuration, run: Path) -> None:
    """Serve until a SIGTERM.

    Raises:
        InvalidConfig: the settings cannot be read.
        OSError: a port is taken, or Envoy's files cannot be written.
    """
    parent = os.getppid()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    settings, nodes = configuration.read(FIRST_S)
    gateway = Gateway(settings, nodes, EnvoyEdge(run), run)
    runners = []
    try:
        await gateway.start()
        ports = settings.ports
        runners.append(await serve(control_app(gateway), ports.internal_address, ports.control))
        runners.append(await serve(metrics_app(gateway), ports.internal_address, ports.metrics))
        logger.info("nodes: %s", ", ".join(node.name for node in nodes) or "none")
        while not stopped.is_set() and os.getppid() == parent:
            (run / ALIVE).touch()
            try:
                await asyncio.wait_for(stopped.wait(), LOOK_S)
            except TimeoutError:
                if (changed := configuration.changed()) is not None:
                    gateway.configure(*changed)
    finally:
        for runner in runners:
            await runner.cleanup()
        await gateway.close()


def main(arguments: list[str]) -> int:
    """Run it; 1 with one line when it fails."""
    parser = argparse.ArgumentParser(prog="python -m deploy.gateway.control", description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--nodes", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(control(Configuration(options.config, options.nodes), options.run))
    except (InvalidConfig, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
