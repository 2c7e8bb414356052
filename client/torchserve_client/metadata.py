"""The metadata of a model: its inputs, its outputs, how many rows a request may carry. Pure.

the gateway's /v2/models/M and /v2/models/M/config   -> Metadata
a handler's own answer to X-Model-Metadata           -> Metadata
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from torchserve_client.errors import ClientError, ServerFailed

# Of a request to /predictions/M: it is answered with the model's metadata, and nothing runs.
HEADER = "X-Model-Metadata"
# Of an adaptive worker's answer to it: how many other requests the worker has.
IN_FLIGHT = "X-In-Flight"
# Names of a gateway's parameters that hold proofs begin with it; the precision follows.
PROOF = "proof."

# Path and headers -> the JSON that a server answers, None where it is none; raises ClientError.
Get = Callable[[str, Mapping[str, str]], Any]


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """One input or output of a model.

    Attributes:
        name: as requests and answers have it.
        datatype: the Open Inference Protocol's name, as in "FP32"; "ANY" where the model takes any.
        shape: with the batch dimension; -1 where a size is the request's.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a model takes and returns.

    Attributes:
        name, version: as registered; the version is None where it is not known.
        platform: what serves it.
        inputs, outputs: its tensors, in its order; without outputs where only a first run shows them.
        max_batch_size: the most rows that one request may carry; 0 where it is not known.
        precision: the arithmetic that serves, as in "bf16"; empty where it is not known.
        proofs: by precision, how near its answers are to those in fp32 as the archive's builder measured: "measure"
            (see docs/explanation/precision.md), "agreement" (0..1), "largest_change" (or None), "samples",
            "least".
    """

    name: str
    version: str | None
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    max_batch_size: int
    precision: str = ""
    proofs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def ask(get: Get, model: str, version: str | None) -> Metadata:
    """Ask a server for a model's metadata: as a gateway, which removes X-Model-Metadata, and then the model itself.

    Raises:
        ServerFailed: the model does not know the question.
        ClientError: there was no answer, or there is no such model.
    """
    parts = [quote(each, safe="") for each in (model, version) if each is not None]
    path = "/v2/models/" + "/versions/".join(parts)
    try:
        try:
            document = get(path, {})
        except ClientError as error:
            # TorchServe has no such path: its 404 has the type of Java's exception, a gateway's has none.
            if error.status not in (404, 405, 501) or not error.type.endswith("Exception"):
                raise
            document = get("/predictions/" + "/".join(parts), {HEADER: "1"})
            return _read(document, document.get("version"))
        config = get(f"{path}/config", {})
        texts = {name: str(value["string_value"]) for name, value in (config.get("parameters") or {}).items()}
        proofs = {name.removeprefix(PROOF): json.loads(text) for name, text in texts.items() if name.startswith(PROOF)}
        rest = {"max_batch_size": config["max_batch_size"], "precision": texts.get("precision"), "proofs": proofs}
        versions = document["versions"]
        return _read({**document, **rest}, versions[0] if len(versions) == 1 else None)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServerFailed(f"{model}: it does not say what it takes and gives", 200, "NoMetadata") from error


def _read(document: Mapping[str, Any], version: str | None) -> Metadata:
    return Metadata(
        name=str(document["name"]),
        version=version,
        platform=str(document.get("platform", "")),
        inputs=tuple(map(_tensor, document["inputs"])),
        outputs=tuple(map(_tensor, document["outputs"])),
        max_batch_size=int(document.get("max_batch_size", 0)),
        precision=str(document.get("precision") or ""),
        proofs=dict(document.get("proofs") or {}),
    )


def _tensor(document: Mapping[str, Any]) -> TensorMetadata:
    return TensorMetadata(
        str(document["name"]), str(document["datatype"]), tuple(int(size) for size in document["shape"])
    )
