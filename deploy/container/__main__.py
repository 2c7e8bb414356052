"""The process of a container.

node     run a node until a SIGTERM, or until TorchServe has died; node --help lists its settings
drain    print that a node needs no hook before its SIGTERM
"""

import argparse
import sys

from deploy.container.node import NodeProcess
from deploy.container.settings import NodeSettings
from deploy.gateway.envoy.process import EnvoyError
from deploy.run.server import ServerError
from handlers.errors import InvalidConfig
from torchserve_client.errors import ManagementError


def main(arguments: list[str]) -> int:
    """Run a node; 1 with one line when it fails."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.container", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("node", "drain"))
    if parser.parse_args(arguments[:1]).command == "drain":
        print("drain: a SIGTERM drains the node, and no hook before it is needed")
        return 0
    try:
        NodeProcess(NodeSettings.parse(arguments[1:])).run()
        return 0
    except (ServerError, EnvoyError, ManagementError, InvalidConfig, OSError) as error:
        print(f"node: {' / '.join(str(error).splitlines())}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
