"""Classifies one photograph, then two at once, with Client.     python -m examples.client.predict [URL]"""

import sys
from pathlib import Path

from torchserve_client import Client, ClientError, ItemFailed

PHOTOGRAPHS = [Path("examples/mobilenet-v2/espresso.jpg"), Path("examples/resnet-152/cat.jpg")]


def main(url: str = "http://127.0.0.1:8080") -> None:
    """Send both requests and print errors."""
    with Client(url, timeout_s=30) as client:
        print(client.predict("mobilenet-v2", PHOTOGRAPHS[0], top_k=1))
        # A list has a result for each item; the last item is invalid, which does not affect the others.
        for answer in client.predict("mobilenet-v2", [*PHOTOGRAPHS, b"not a photograph"], top_k=1):
            print(f"failed: {answer.type}: {answer.message}" if isinstance(answer, ItemFailed) else answer)
        try:
            client.predict("mobilenet-v2", PHOTOGRAPHS[0], top_k="many")
        except ClientError as error:
            print(f"{error.status} {error.type}: {error.message}")


if __name__ == "__main__":
    main(*sys.argv[1:])
