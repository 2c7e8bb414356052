"""Embeds a thousand sentences in one call, with ChunkingClient.

    python -m examples.client.chunking [URL [MANAGEMENT]]

ChunkingClient sends lists as long as the model's batch_size, several at a time, and joins the results in order. It also
accepts a dict of arrays, which it cuts along axis 0.
"""

import sys

import numpy as np

from torchserve_client import ChunkingClient, ChunksFailed, Client

SENTENCES = [f"The river rose by {number} centimetres." for number in range(1000)]


def main(url: str = "http://127.0.0.1:8080", management_url: str = "http://127.0.0.1:8081") -> None:
    """Embed the sentences as lists and as tensors."""
    with Client(url, management_url) as client, ChunkingClient(client, max_workers=4) as chunking:
        try:
            vectors = np.array(chunking.infer_batch("sentence-embedding", SENTENCES))
        except ChunksFailed as error:
            sys.exit(f"{error}; {len(error.results)} chunks have results")
        print("as lists", vectors.shape, vectors[:2, :3].round(4).tolist())
        tensors = {"text": np.array(SENTENCES[:100], object)}
        print("as tensors", chunking.infer_batch("sentence-embedding", tensors)["embedding"].shape)


if __name__ == "__main__":
    main(*sys.argv[1:])
