"""The container's HEALTHCHECK: 0 where the node, or the edge, is ready.

    port 8085 listens: a node,  GET /ready             HEALTH_URL names another address
    port 8000 listens: an edge, GET /v2/health/ready

Standard library only, and started as `python3 -S`: it runs every few seconds on a machine that is busy.
"""

import os
import socket
import ssl
import sys
import urllib.error
import urllib.request

READY = {8085: "http://127.0.0.1:8085/ready", 8000: "http://127.0.0.1:8000/v2/health/ready"}
# Below the HEALTHCHECK's own timeout, so that what is printed is kept with its result.
TIMEOUT_S = 4.0


def url() -> str | None:
    """What to ask: HEALTH_URL, or what listens; None where nothing does."""
    if named := os.environ.get("HEALTH_URL"):
        return named
    for port, address in READY.items():
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            continue
        return address
    return None


def main() -> int:
    """Print what was found; 1 where it is not ready."""
    address = url()
    if address is None:
        print(f"health: nothing listens on {' or '.join(map(str, READY))}")
        return 1
    # The edge's certificate is for its clients' name of it, and this is the machine itself.
    context = ssl._create_unverified_context() if address.startswith("https:") else None  # noqa: S323
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S, context=context) as answer:  # noqa: S310
            print(f"health: {address}: {answer.status}")
            return 0
    except urllib.error.HTTPError as error:
        print(f"health: {address}: {error.code}")
    except OSError as error:
        print(f"health: {address}: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
