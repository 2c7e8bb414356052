"""`python -m deploy.container`: the process of a container."""

import sys

from deploy.command import run_command
from deploy.container.node import NodeProcess
from deploy.container.settings import NodeSettings, make_parser
from deploy.gateway.envoy.process import EnvoyError
from deploy.run.errors import ServerError
from handlers.errors import InvalidConfig
from torchserve_client.errors import ManagementError


def main(arguments: list[str]) -> int:
    options = make_parser().parse_args(arguments)
    failures = (ServerError, EnvoyError, ManagementError, InvalidConfig, OSError)
    return run_command("node", lambda: NodeProcess(NodeSettings.from_options(options)).run(), *failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
