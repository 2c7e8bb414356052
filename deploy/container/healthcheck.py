"""The container's HEALTHCHECK: 0 where the node, or the edge, is ready; HEALTH_URL names another address.

Standard library only, and started as `python3 -S`: it runs every few seconds on a machine that is busy.
"""

import os
import ssl
import sys
import urllib.error
import urllib.request

# A node's, and an edge's.
READY = "http://127.0.0.1:8085/ready http://127.0.0.1:8004/v2/health/ready"
# Below the HEALTHCHECK's own timeout, so that what is printed is kept with its result.
TIMEOUT_S = 4.0


def main() -> int:
    """Print what was found; 1 where it is not ready."""
    # An edge's certificate is for its clients' name of it, and this is the machine itself.
    context = ssl._create_unverified_context()  # noqa: S323
    for address in (os.environ.get("HEALTH_URL") or READY).split():
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT_S, context=context) as answer:  # noqa: S310
                print(f"health: {address}: {answer.status}")
                return 0
        except urllib.error.HTTPError as error:
            print(f"health: {address}: {error.code}")
            return 1
        except OSError as error:
            print(f"health: {address}: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
