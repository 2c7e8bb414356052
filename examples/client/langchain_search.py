"""Searches texts with LangChain and this server's vectors, through the gateway.

    python -m examples.client.langchain_search [http://HOST:8000/v1 [MODEL]]

It needs `pip install langchain-openai`. By default OpenAIEmbeddings sends the token ids of OpenAI's models, which other
models cannot use; with check_embedding_ctx_length=False it sends texts.
"""

import sys

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

QUERY = "When does the last ferry leave?"
TEXTS = ["Plum cake is sold on Sundays.", "The last ferry leaves at seven in the evening.", "The wall is of stone."]


def main(base_url: str = "http://localhost:8000/v1", model: str = "sentence-embedding") -> None:
    """Print the text that answers the query best."""
    embeddings = OpenAIEmbeddings(
        model=model, base_url=base_url, api_key=SecretStr("none"), check_embedding_ctx_length=False
    )
    store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
    (found,) = store.similarity_search(QUERY, k=1)
    print(found.page_content)


if __name__ == "__main__":
    main(*sys.argv[1:])
