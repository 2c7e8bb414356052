"""`python -m deploy.nodes.container`: the process of a container; settings.py names its variables."""

import sys

from deploy.command import run_command
from deploy.gateway.envoy.process import EnvoyError
from deploy.nodes.container.node import NodeProcess
from deploy.nodes.container.settings import NodeSettings
from deploy.nodes.run import ServerError
from handlers.errors import InvalidConfig
from torchserve_client.errors import ManagementError


def main() -> int:
    failures = (ServerError, EnvoyError, ManagementError, InvalidConfig, OSError)
    return run_command("node", lambda: NodeProcess(NodeSettings.read()).run(), *failures)


if __name__ == "__main__":
    sys.exit(main())
