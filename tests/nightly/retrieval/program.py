"""Tests of the gateway with the clients of OpenAI, LangChain, LlamaIndex and Cohere; prints the names that pass.

python -m tests.nightly.retrieval.program http://HOST:PORT, with the packages of clients.lock. The gateway serves
sentence-embedding and reranking.
"""

import asyncio
import json
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import cohere
import openai
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from pydantic import SecretStr

MODEL, RERANKING = "sentence-embedding", "reranking"
TEXTS = ["The last ferry leaves at seven in the evening.", "Plum cake is sold on Sundays."]
QUERY = "When does the last ferry leave?"
# A vector's numbers change by so much with the micro-batch that its text is in, in bf16.
CLOSE = 2e-2


def near(first: Any, second: Any) -> bool:
    return len(first) == len(second) and max(abs(a - b) for a, b in zip(first, second, strict=True)) < CLOSE


class Clients:
    """One method for each client of docs/reference/openai.md; each raises if the client fails."""

    def __init__(self, root: str) -> None:
        self.root, self.v1 = root, f"{root}/v1"
        self.openai = openai.OpenAI(base_url=self.v1, api_key="none")
        found = self.openai.embeddings.create(model=MODEL, input=TEXTS, encoding_format="float")
        self.vectors = [each.embedding for each in found.data]

    def openai_python(self) -> None:
        many = self.openai.embeddings.create(model=MODEL, input=TEXTS)
        assert all(near(each.embedding, vector) for each, vector in zip(many.data, self.vectors, strict=True))
        assert many.usage.total_tokens == 21
        assert len(self.openai.embeddings.create(model=MODEL, input=TEXTS[0], dimensions=384).data) == 1
        assert MODEL in [each.id for each in self.openai.models.list()]
        assert self.openai.models.retrieve("intfloat/alias").id == "intfloat/alias"
        assert self.openai.embeddings.create(model="intfloat/alias", input="x").model == MODEL

    def openai_errors(self) -> None:
        for kind, param, asked in (
            (openai.BadRequestError, "dimensions", {"dimensions": 8}),
            (openai.BadRequestError, "input", {"input": [[15339, 1917], [65]]}),
            (openai.BadRequestError, "input", {"input": [15339, 1917]}),
            (openai.NotFoundError, "model", {"model": "text-embedding-3-small"}),
            (openai.BadRequestError, "model", {"model": RERANKING}),
        ):
            try:
                self.openai.embeddings.create(**{"model": MODEL, "input": TEXTS, **asked})
            except kind as error:
                assert (error.param, bool(error.message)) == (param, True)
            else:
                raise AssertionError(asked)

    def openai_async(self) -> None:
        async def ask() -> None:
            async with openai.AsyncOpenAI(base_url=self.v1, api_key="none") as client:
                calls = [client.embeddings.create(model=MODEL, input=text) for text in TEXTS * 20]
                for answer, vector in zip(await asyncio.gather(*calls), self.vectors * 20, strict=True):
                    assert near(answer.data[0].embedding, vector)

        asyncio.run(ask())

    def langchain(self) -> None:
        own = self._langchain(MODEL, check_embedding_ctx_length=False)
        assert all(map(near, own.embed_documents(TEXTS), self.vectors))
        assert near(own.embed_query(TEXTS[0]), self.vectors[0])
        # Its default sends token ids.
        try:
            self._langchain(MODEL).embed_documents(TEXTS)
        except openai.BadRequestError as error:
            assert "check_embedding_ctx_length=False" in error.message
        else:
            raise AssertionError("token ids were taken")

    def _langchain(self, model: str, **settings: Any) -> OpenAIEmbeddings:
        return OpenAIEmbeddings(model=model, base_url=self.v1, api_key=SecretStr("none"), **settings)

    def llama_index(self) -> None:
        model = OpenAILikeEmbedding(model_name=MODEL, api_base=self.v1, api_key="none")
        assert all(map(near, model.get_text_embedding_batch(TEXTS), self.vectors))
        assert near(model.get_query_embedding(TEXTS[0]), self.vectors[0])

    def cohere(self) -> None:
        two = cohere.ClientV2(api_key="none", base_url=self.root)
        ranked = two.rerank(model=RERANKING, query=QUERY, documents=[*TEXTS, QUERY], top_n=2).results
        assert [each.relevance_score for each in ranked] == sorted((e.relevance_score for e in ranked), reverse=True)
        try:
            two.rerank(model="no", query=QUERY, documents=TEXTS)
        except cohere.NotFoundError as error:
            assert "model_not_found" in str(error.body)
        else:
            raise AssertionError("an unknown model answered")

    def jina(self) -> None:
        asked = {"query": QUERY, "documents": [{"text": each} for each in TEXTS], "top_n": 1, "return_documents": True}
        (best,) = self._post("/v1/rerank", {**asked, "model": RERANKING})["results"]
        assert best["document"]["text"] == TEXTS[best["index"]]
        found = self._post("/v1/embeddings", {"model": MODEL, "input": TEXTS, "task": "retrieval.query"})
        assert near(found["data"][0]["embedding"], self.vectors[0])

    def _post(self, path: str, document: Any) -> Any:
        asked = urllib.request.Request(  # noqa: S310
            self.root + path, json.dumps(document).encode(), {"Content-Type": "application/json; charset=utf-8"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310
            return json.load(answer)


CHECKS: tuple[Callable[[Clients], None], ...] = (
    Clients.openai_python,
    Clients.openai_errors,
    Clients.openai_async,
    Clients.langchain,
    Clients.llama_index,
    Clients.cohere,
    Clients.jina,
)


def main(root: str) -> None:
    clients = Clients(root)
    for check in CHECKS:
        check(clients)
        print(check.__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
