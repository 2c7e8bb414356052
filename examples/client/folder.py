"""Classifies a folder of photographs with FuturesClient, many requests at a time.

python -m examples.client.folder [URL [FOLDER]]
"""

import sys
from concurrent.futures import as_completed
from pathlib import Path

from torchserve_client import Client, ClientError, FuturesClient


def main(url: str = "http://127.0.0.1:8080", folder: str = "examples") -> None:
    """Print each result when it is ready; Ctrl-C ends the program at once."""
    with Client(url) as client, FuturesClient(client, max_workers=16) as futures:
        # `submit` waits while max_workers + max_queue_items requests are in flight, so the folder may have any size.
        names = {futures.submit("mobilenet-v2", path, top_k=1): path for path in sorted(Path(folder).rglob("*.jpg"))}
        for future in as_completed(names):
            try:
                print(names[future].name, future.result())
            except ClientError as error:
                print(names[future].name, error.message)


if __name__ == "__main__":
    main(*sys.argv[1:])
