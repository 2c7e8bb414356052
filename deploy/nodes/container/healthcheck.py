"""The container's HEALTHCHECK: exits with 0 if the node or edge is ready; HEALTH_URL replaces the addresses.

Standard library only, and started as `python3 -S`: it runs every few seconds on a busy machine.
"""

import os
import ssl
import sys
import urllib.error
import urllib.request

READY = "http://127.0.0.1:8085/ready http://127.0.0.1:8004/v2/health/ready"  # a node's address, and an edge's
TIMEOUT_S = 4.0  # timeout in seconds: below the HEALTHCHECK's own, so that its log contains the output


def main() -> int:
    """Print the result; return 1 if the container is not ready."""
    # An edge's certificate is for its public name, and this address is the machine itself.
    context = ssl._create_unverified_context()  # noqa: S323
    for address in (os.environ.get("HEALTH_URL") or READY).split():
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT_S, context=context) as response:  # noqa: S310
                print(f"health: {address}: {response.status}")
                return 0
        except urllib.error.HTTPError as error:
            print(f"health: {address}: {error.code}")
            return 1
        except OSError as error:
            print(f"health: {address}: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
