"""`python -m deploy.container node|drain`: a node as a container runs it, and what its preStop hook calls.

node    stays until a SIGTERM, or until TorchServe has died
drain   the node gets nothing new; ends when its last answer is out. A SIGTERM ends the node then
"""

import argparse
import sys

from deploy.container import settings
from deploy.container.drain import drain
from deploy.container.node import NodeProcess
from deploy.gateway.envoy.process import EnvoyError
from deploy.gateway.supervisor import GatewayFailed
from deploy.run.server import ServerError
from handlers.errors import InvalidConfig
from torchserve_client.errors import ManagementError


def main(arguments: list[str]) -> int:
    """Run a command; 1 with one line when it fails."""
    parser = argparse.ArgumentParser(prog="python -m deploy.container", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=["node", "drain"], help="node stays until it ends")
    settings.add_arguments(parser)
    asked = parser.parse_args(arguments)
    chosen = settings.of(asked)
    try:
        if asked.command == "node":
            NodeProcess(chosen).run()
            return 0
        is_answered = drain(chosen.run, lambda words: print(f"drain: {words}", flush=True))
        print("drain: the last answer is out" if is_answered else "drain: answers were due when the time was up")
        return 0 if is_answered else 1
    except (ServerError, GatewayFailed, EnvoyError, ManagementError, InvalidConfig, OSError) as error:
        print(f"{asked.command}: {' / '.join(str(error).splitlines())}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
