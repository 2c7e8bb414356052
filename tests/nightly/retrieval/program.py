"""Tests of the gateway with the clients of other servers and of OpenAI, Cohere and Voyage; prints the names that pass.

python -m tests.nightly.retrieval.program http://HOST:PORT, with the packages of clients.lock. The gateway serves
sentence-embedding and reranking.
"""

import asyncio
import base64
import json
import struct
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

import cohere
import huggingface_hub
import litellm
import openai
import voyageai
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from pydantic import SecretStr

MODEL, RERANKING = "sentence-embedding", "reranking"
TEXTS = ["The last ferry leaves at seven in the evening.", "Plum cake is sold on Sundays."]
QUERY = "When does the last ferry leave?"
# A vector's numbers change by so much with the micro-batch that its text is in, in bf16.
CLOSE = 2e-2


def near(first: Any, second: Any) -> bool:
    return len(first) == len(second) and max(abs(a - b) for a, b in zip(first, second, strict=True)) < CLOSE


def raised(kind: type[Exception], call: Callable[..., object], *arguments: Any, **named: Any) -> Any:
    """Return the error that a call must raise."""
    try:
        call(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}: {named}")


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
            error = raised(kind, self.openai.embeddings.create, **{"model": MODEL, "input": TEXTS, **asked})
            assert (error.param, bool(error.message)) == (param, True)

    def openai_async(self) -> None:
        async def ask() -> None:
            async with openai.AsyncOpenAI(base_url=self.v1, api_key="none") as client:
                calls = [client.embeddings.create(model=MODEL, input=text) for text in TEXTS * 20]
                for answer, vector in zip(await asyncio.gather(*calls), self.vectors * 20, strict=True):
                    assert near(answer.data[0].embedding, vector)

        asyncio.run(ask())

    def langchain(self) -> None:
        make = partial(OpenAIEmbeddings, model=MODEL, base_url=self.v1, api_key=SecretStr("none"))
        own = make(check_embedding_ctx_length=False)
        assert all(map(near, own.embed_documents(TEXTS), self.vectors))
        assert near(own.embed_query(TEXTS[0]), self.vectors[0])
        # Its default sends token ids.
        error = raised(openai.BadRequestError, make().embed_documents, TEXTS)
        assert "check_embedding_ctx_length=False" in error.message

    def llama_index(self) -> None:
        model = OpenAILikeEmbedding(model_name=MODEL, api_base=self.v1, api_key="none")
        assert all(map(near, model.get_text_embedding_batch(TEXTS), self.vectors))
        assert near(model.get_query_embedding(TEXTS[0]), self.vectors[0])

    def cohere(self) -> None:
        two = cohere.ClientV2(api_key="none", base_url=self.root)
        ranked = two.rerank(model=RERANKING, query=QUERY, documents=[*TEXTS, QUERY], top_n=2).results
        assert [each.relevance_score for each in ranked] == sorted((e.relevance_score for e in ranked), reverse=True)
        error = raised(cohere.NotFoundError, two.rerank, model="no", query=QUERY, documents=TEXTS)
        assert "model_not_found" in str(error.body)

    def jina(self) -> None:
        asked = {"query": QUERY, "documents": [{"text": each} for each in TEXTS], "top_n": 1, "return_documents": True}
        (best,) = self._post("/v1/rerank", {**asked, "model": RERANKING})["results"]
        assert best["document"]["text"] == TEXTS[best["index"]]
        found = self._post("/v1/embeddings", {"model": MODEL, "input": TEXTS, "task": "retrieval.query"})
        assert near(found["data"][0]["embedding"], self.vectors[0])

    def cohere_embeddings(self) -> None:
        two, one = (kind(api_key="none", base_url=self.root) for kind in (cohere.ClientV2, cohere.Client))
        types = ["float", "binary", "ubinary", "base64"]
        asked: Any = {"texts": TEXTS, "input_type": "search_document"}
        found = two.embed(model=MODEL, embedding_types=types, truncate="NONE", **asked)
        assert all(map(near, found.embeddings.float_, self.vectors))
        bits = [[number > 0 for number in vector] for vector in found.embeddings.float_]
        places, rows = range(7, -1, -1), found.embeddings.ubinary
        assert [[bool(byte >> place & 1) for byte in row for place in places] for row in rows] == bits
        assert [[byte + 128 for byte in row] for row in found.embeddings.binary] == rows
        size = len(self.vectors[0])
        packed = [struct.unpack(f"<{size}f", base64.b64decode(each)) for each in found.embeddings.base64]
        assert all(map(near, packed, self.vectors))
        assert found.meta.billed_units.input_tokens == 21
        # The first version has no model, and its client sends at most 96 texts at once.
        many = one.embed(texts=TEXTS * 60, input_type="search_query", truncate="END").embeddings
        assert all(map(near, many, self.vectors * 60))
        for kind, more in ((cohere.NotFoundError, {"model": "no"}), (cohere.BadRequestError, {"output_dimension": 8})):
            error = raised(kind, two.embed, **{"model": MODEL, "embedding_types": ["float"], **asked, **more})
            assert error.body.keys() == {"message"}

    def litellm(self) -> None:
        embedders = {"cohere": "/v2/embed", "jina_ai": "/v1", "voyage": "/v1/embeddings", "hosted_vllm": "/v1"}
        for provider, path in embedders.items():
            place = {"api_base": self.root + path, "api_key": "none"}
            found = litellm.embedding(f"{provider}/{MODEL}", input=TEXTS, **place).data
            pairs = zip(found, self.vectors, strict=True)
            assert all(near(each["embedding"], vector) for each, vector in pairs), provider
        rerankers = {"cohere": "/v2/rerank", "infinity": "", "hosted_vllm": "/v1"}
        for provider, path in {**rerankers, **dict.fromkeys(("jina_ai", "voyage"), "/v1/rerank")}.items():
            asked: Any = {"query": QUERY, "documents": [*TEXTS, QUERY], "top_n": 2, "api_base": self.root + path}
            asked |= {"return_documents": provider != "infinity", "api_key": "none"}
            ranked = litellm.rerank(f"{provider}/{RERANKING}", **asked).results
            scores = [each["relevance_score"] for each in ranked]
            assert (len(scores), scores) == (2, sorted(scores, reverse=True)), provider

    def voyage(self) -> None:
        client = voyageai.Client(api_key="none", base_url=self.v1, max_retries=0)
        found = client.embed(TEXTS, model=MODEL, input_type="document", truncation=True, output_dimension=384)
        assert all(map(near, found.embeddings, self.vectors))
        ranked = client.rerank(QUERY, TEXTS, model=RERANKING, top_k=1).results
        assert [each.document for each in ranked] == [TEXTS[ranked[0].index]]
        assert len(client.rerank(QUERY, TEXTS, model=RERANKING).results) == len(TEXTS)
        place: Any = {"api_base": f"{self.v1}/rerank", "api_key": "none"}
        assert len(litellm.rerank(f"voyage/{RERANKING}", query=QUERY, documents=TEXTS, **place).results) == len(TEXTS)

    def text_embeddings_inference(self) -> None:
        model = TextEmbeddingsInference(model_name="any", base_url=self.root)
        lengths = [sum(number**2 for number in vector) ** 0.5 for vector in self.vectors]
        units = [[number / length for number in each] for each, length in zip(self.vectors, lengths, strict=True)]
        assert all(map(near, model.get_text_embedding_batch(TEXTS), units))
        ranked = self._post("/rerank", {"query": QUERY, "texts": TEXTS})
        assert sorted(each["index"] for each in ranked) == [0, 1]
        with urllib.request.urlopen(f"{self.root}/info", timeout=60) as answer:  # noqa: S310
            assert json.load(answer)["model_id"] == MODEL

    def hugging_face(self) -> None:
        client = huggingface_hub.InferenceClient(model=f"{self.root}/predictions/{MODEL}", token="none")  # noqa: S106
        assert all(map(near, client.feature_extraction(TEXTS).tolist(), self.vectors))
        assert near(client.feature_extraction(TEXTS[0], truncate=True).tolist(), self.vectors[0])
        unit = [number / sum(each**2 for each in self.vectors[0]) ** 0.5 for number in self.vectors[0]]
        assert near(client.feature_extraction(TEXTS[0], normalize=True).tolist(), unit)

    def _post(self, path: str, document: Any) -> Any:
        asked = urllib.request.Request(  # noqa: S310
            self.root + path, json.dumps(document).encode(), {"Content-Type": "application/json; charset=utf-8"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310
            return json.load(answer)


if __name__ == "__main__":
    clients = Clients(sys.argv[1])
    for name, check in vars(Clients).items():
        if not name.startswith("_"):
            check(clients)
            print(name)
