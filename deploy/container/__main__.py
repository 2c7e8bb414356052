"""`python -m deploy.container node`: a node as a container runs it, until a SIGTERM, or until TorchServe has died."""

import sys

from deploy.container.node import NodeProcess
from deploy.container.settings import NodeSettings
from deploy.gateway.envoy.process import EnvoyError
from deploy.run.server import ServerError
from handlers.errors import InvalidConfig
from torchserve_client.errors import ManagementError


def main(arguments: list[str]) -> int:
    """Run a node; 1 with one line when it fails."""
    if arguments[:1] == ["drain"]:
        print("drain: a SIGTERM drains the node, and no hook before it is needed")
        return 0
    if arguments[:1] != ["node"]:
        print("python -m deploy.container node: see node --help", file=sys.stderr)
        return 2
    try:
        NodeProcess(NodeSettings.parse(arguments[1:])).run()
        return 0
    except (ServerError, EnvoyError, ManagementError, InvalidConfig, OSError) as error:
        print(f"node: {' / '.join(str(error).splitlines())}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
