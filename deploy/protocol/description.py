"""The protocol's documents about a server and its models; pure.

a handler's metadata (handlers.protocol.metadata) -> metadata, configuration
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from deploy.protocol.errors import RequestError
from deploy.protocol.rejections import UNKNOWN_MODEL
from handlers.protocol.api_forms import error_document
from handlers.protocol.wire import NAMELESS
from torchserve_client.payloads import Json
from torchserve_client.version import VERSION

NAME = "torchserve-batching"
# The extensions of Triton that every server supports.
EXTENSIONS = ("binary_tensor_data", "parameters", "model_configuration")
UNKNOWN_PLATFORM = "torchserve"  # the platform of a handler without metadata
# Datatypes with another name in a configuration, which has no name for ANY.
OTHER_TYPES = {"BYTES": "TYPE_STRING", "ANY": "TYPE_INVALID"}


def strip_zeros(version: str) -> str:
    """Return a version as Triton's clients name it: "1" for "1.0" and "1.0.0"."""
    while version.endswith(".0"):
        version = version.removesuffix(".0")
    return version


def describe_server(*extensions: str) -> Json:
    """Return the server's metadata, with further extensions."""
    return {"name": NAME, "version": VERSION, "extensions": [*EXTENSIONS, *extensions]}


def metadata(name: str, versions: Sequence[str], document: Json) -> Json:
    """Return the model's metadata, of its handler's; empty for a handler of another project."""
    return {
        "name": name,
        "versions": versions,
        "platform": document.get("platform", UNKNOWN_PLATFORM),
        **{
            kind: [{name: each[name] for name in ("name", "datatype", "shape")} for each in document.get(kind, [])]
            for kind in ("inputs", "outputs")
        },
    }


def configuration(name: str, document: Json, *, workers: int = 1, batch_size: int = 0, delay_ms: int = 0) -> Json:
    """Return Triton's configuration; with rows along a later dimension, max_batch_size is 0 and `dims` are complete."""
    rows = document.get("max_batch_size")
    rows = rows if isinstance(rows, int) and rows > 0 else 1
    tensors = {kind: list(document.get(kind, [])) for kind in ("inputs", "outputs")}
    # The dimension of the rows, if it is not the first.
    elsewhere = {each["name"]: each["batch_dim"] for kind in tensors.values() for each in kind if each.get("batch_dim")}
    first = 0 if elsewhere else 1
    # Values without a field in the configuration; the proof of each precision of the archive, as JSON.
    parameters: dict[str, object] = {"max_batch_size": rows} if elsewhere else {}
    parameters |= {f"batch_dim.{name}": dimension for name, dimension in elsewhere.items()}
    if precision := document.get("precision"):
        parameters["precision"] = precision
    if isinstance(proofs := document.get("proofs"), Mapping):
        parameters |= {f"proof.{name}": json.dumps(proof) for name, proof in proofs.items()}
    named = {name: {"string_value": str(value)} for name, value in parameters.items()}
    kind = "KIND_GPU" if document.get("device") == "cuda" else "KIND_CPU"
    return {
        "name": name,
        "platform": document.get("platform", UNKNOWN_PLATFORM),
        "backend": UNKNOWN_PLATFORM,
        "version_policy": {"all": {}},
        "max_batch_size": 0 if elsewhere else rows,
        "input": [_describe_tensor(tensor, first) for tensor in tensors["inputs"]],
        "output": [_describe_tensor(tensor, first) for tensor in tensors["outputs"]],
        "dynamic_batching": {
            "preferred_batch_size": [batch_size] if batch_size > 0 else [],
            "max_queue_delay_microseconds": delay_ms * 1000,
        },
        "instance_group": [{"name": name, "kind": kind, "count": workers}] if workers else [],
        **({"parameters": named} if named else {}),
    }


def find_only(path: str, documents: Mapping[str, Json], preferred: Sequence[str] = ()) -> str:
    """Return the model for a request that names none, by all metadata: the only one, or the preferred; or ""."""
    asked = NAMELESS.get(path, "")
    found = [name for name, document in documents.items() if asked in (document.get("apis") or [document.get("api")])]
    found = [name for name in found if name in preferred] or found
    return found[0] if len(found) == 1 else ""


def describe_embedder(documents: Mapping[str, Json], preferred: Sequence[str]) -> Json:
    """Return text-embeddings-inference's /info of the model of /embed or else of /rerank, given all metadata."""
    if not (name := find_only("/embed", documents, preferred) or find_only("/rerank", documents, preferred)):
        raise RequestError(404, "/info: one model must embed or rerank, or default_models name one")
    kind = "reranker" if documents[name]["api"] == "rerank" else "embedding"
    most = documents[name].get("max_request_items")
    version = describe_server()["version"]
    return {"model_id": name, "model_type": {kind: {}}, "max_client_batch_size": most, "version": version}


def list_models(
    documents: Mapping[str, Json], name: str = "", states: Mapping[str, str] = MappingProxyType({})
) -> tuple[Mapping[str, object], int]:
    """Return OpenAI's list of models by all metadata, or the model of that name, with the status."""
    # Clients expect a time; no node reports one.
    found: dict[str, Json] = {
        each: {"id": each, "object": "model", "created": 0, "owned_by": "torchserve"} for each in documents
    }
    for each, document in documents.items():
        if space := document.get("vector_space"):
            found[each]["vector_space"] = space
        if state := states.get(each):
            found[each]["state"] = state
    if not name:
        return {"object": "list", "data": [*found.values()]}, 200
    if name in found:
        return found[name], 200
    return error_document(*UNKNOWN_MODEL[:3], "model"), UNKNOWN_MODEL.status


def _describe_tensor(tensor: Json, first: int) -> Json:
    """Return a tensor of the configuration, with the dimensions from `first` on."""
    datatype = tensor["datatype"]
    return {
        "name": tensor["name"],
        "data_type": OTHER_TYPES.get(datatype, f"TYPE_{datatype}"),
        "dims": tensor["shape"][first:],
    }
