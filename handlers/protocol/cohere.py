"""Cohere's embeddings (POST /v1/embed, /v2/embed): its fields as ours, and its answers. Pure.

https://docs.cohere.com/reference/embed has the names.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from handlers.aliases import Json
from handlers.errors import InvalidBody, InvalidOption
from handlers.protocol.api_forms import Embeddings, encode_base64
from handlers.protocol.tensors import VECTOR_DTYPES, quantize

TYPES = (*VECTOR_DTYPES, "base64")
TRUNCATE: Mapping[str, Mapping[str, object]] = {
    "NONE": {"truncation": False},
    "START": {"truncation": True, "truncation_side": "left"},
    "END": {"truncation": True, "truncation_side": "right"},
}
FIELDS = ("texts", "images", "inputs")


class Asked(NamedTuple):
    """The part of a request that decides the form of its answer."""

    types: Sequence[str]  # none for the first version's list of floats
    texts: Sequence[str]  # repeated in the answer
    version: str


NOTHING = Asked((), (), "")


def read(sent: Json, aliases: dict[str, str], version: str) -> Asked:
    """Replace Cohere's fields by ours."""
    field, *more = [name for name in FIELDS if name in sent] or [FIELDS[0]]
    given = sent.pop(field, None)
    if more or not isinstance(given, list):
        raise InvalidBody(f"{field}: must be a list; send one of {', '.join(FIELDS)}.")
    types = sent.pop("embedding_types", [] if version == "1" else ["float"])
    if not isinstance(types, list) or not all(each in TYPES for each in types):
        raise InvalidOption(f"embedding_types: must be a list of {', '.join(TYPES)}.")
    if not isinstance(cut := sent.pop("truncate", "END"), str) or cut not in TRUNCATE:
        raise InvalidOption(f"truncate: must be {', '.join(TRUNCATE)}.")
    if cut == "NONE" and "truncate_prompt_tokens" in sent:
        raise InvalidOption("max_tokens: only with truncate START or END.")
    if sent.get("input_type") == "image":
        del sent["input_type"]
    aliases |= {"input": field, "truncation": "truncate"}
    kind = {"texts": "text", "images": "image"}.get(field)
    sent |= {"input": [{kind: each} if kind else _read_content(each) for each in given], **TRUNCATE[cut]}
    return Asked(types, given if kind == "text" else [], version)


def _read_content(item: object) -> Mapping[str, object]:
    """Read {"content": [part]}."""
    match item:
        case {"content": [{"type": "text", "text": text}]}:
            return {"text": text}
        case {"content": [{"type": "image_url", "image_url": {"url": url}}]}:
            return {"image": url}
    raise InvalidBody('inputs: each must be {"content": [...]} of one text or one image_url; a vector has one of them.')


@dataclass(frozen=True, slots=True)
class CohereEmbeddings(Embeddings):
    asked: Asked = NOTHING
    api = "cohere"

    def document(self, results: Sequence[object]) -> Any:
        vectors = self.vectors(results)
        found = {
            each: encode_base64(vectors) if each == "base64" else list(quantize(vectors, each, self.ranges))
            for each in self.asked.types
        }
        meta = {"api_version": {"version": self.asked.version}, "billed_units": {"input_tokens": self.tokens}}
        kind = "embeddings_by_type" if found else "embeddings_floats"
        answer = {"id": str(uuid.uuid4()), "embeddings": found or list(vectors), "texts": self.asked.texts}
        return {**answer, "meta": meta, "response_type": kind}
