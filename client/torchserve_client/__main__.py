"""Run `torchserve-client` as `python -m torchserve_client`."""

import sys

from torchserve_client.cli import main

if __name__ == "__main__":
    sys.exit(main())
