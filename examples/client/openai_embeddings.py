"""Embeds a query and two texts with OpenAI's own client, through the gateway, and prints how near they are.

    python -m examples.client.openai_embeddings [http://HOST:8000/v1 [MODEL]]

It needs `pip install openai`. Where the gateway asks for keys, one of them is the api_key.
"""

import sys

import numpy as np
from openai import OpenAI

QUERY = "When does the last ferry leave?"
TEXTS = ["The last ferry leaves at seven in the evening.", "Plum cake is sold on Sundays."]


def main(base_url: str = "http://localhost:8000/v1", model: str = "sentence-embedding") -> None:
    """Print each text with its cosine to the query, and what was counted."""
    client = OpenAI(base_url=base_url, api_key="none")
    answer = client.embeddings.create(model=model, input=[QUERY, *TEXTS])
    query, *vectors = (np.array(each.embedding) for each in answer.data)
    for text, vector in zip(TEXTS, vectors, strict=True):
        cosine = query @ vector / np.linalg.norm(query) / np.linalg.norm(vector)
        print(f"{cosine:.2f}  {text}")
    print(answer.usage.total_tokens, "tokens")


if __name__ == "__main__":
    main(*sys.argv[1:])
