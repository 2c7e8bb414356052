"""Embeds a query and two texts with OpenAI's client, through the gateway, and prints their similarity.

    python -m examples.client.openai_embeddings [http://HOST:8000/v1 [MODEL]]

It needs `pip install openai`. If the gateway requires API keys, pass one as api_key.
"""

import sys

import numpy as np
from openai import OpenAI

QUERY = "When does the last ferry leave?"
TEXTS = ["The last ferry leaves at seven in the evening.", "Plum cake is sold on Sundays."]


def main(base_url: str = "http://localhost:8000/v1", model: str = "sentence-embedding") -> None:
    """Print the cosine of each text and the query, and the number of tokens."""
    client = OpenAI(base_url=base_url, api_key="none")
    answer = client.embeddings.create(model=model, input=[QUERY, *TEXTS])
    query, *vectors = (np.array(each.embedding) for each in answer.data)
    for text, vector in zip(TEXTS, vectors, strict=True):
        cosine = query @ vector / np.linalg.norm(query) / np.linalg.norm(vector)
        print(f"{cosine:.2f}  {text}")
    print(answer.usage.total_tokens, "tokens")


if __name__ == "__main__":
    main(*sys.argv[1:])
