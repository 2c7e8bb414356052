"""The metadata of a model: its inputs, its outputs, the most rows of a request. Pure.

the gateway's /v2/models/M and /v2/models/M/config   -> Metadata
a handler's response to X-Model-Metadata             -> Metadata
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from torchserve_client.errors import ClientError, ServerFailed
from torchserve_client.payloads import Json

# Header of a request to /predictions/M that requests the model's metadata in place of a prediction.
HEADER = "X-Model-Metadata"
IN_FLIGHT = "X-In-Flight"  # header of an adaptive worker's response to it: the number of other requests in the worker
FINGERPRINT = "X-Fingerprint"  # header with the hash of everything that the archive was built from
PROOF = "proof."  # prefix of the gateway's parameters that contain proofs; the precision follows

# Path and headers -> the parsed JSON of the response, None if it is not valid; raises ClientError.
Get = Callable[[str, Mapping[str, str]], Any]


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """One input or output of a model.

    Attributes:
        name: name in requests and responses.
        datatype: the Open Inference Protocol's name, as in "FP32"; "ANY" if the model accepts any.
        shape: sizes with the batch dimension; -1 for a size that the request decides.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Metadata:
    """Inputs and outputs of a model.

    Attributes:
        name, version: registered name and version; the version is None if it is not known.
        platform: the software that serves it.
        inputs, outputs: tensors in the model's order; no outputs if only a first run determines them.
        max_batch_size: most rows of one request; 0 if it is not known.
        precision: arithmetic of the running model, as in "bf16"; empty if it is not known.
        proofs: by precision, its agreement with fp32, measured by the build or this worker: "measure"
            (docs/explanation/precision.md), "agreement" (0..1), "largest_change" (or None), "samples", "least".
    """

    name: str
    version: str | None
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    max_batch_size: int
    precision: str = ""
    proofs: Mapping[str, Json] = field(default_factory=dict)


def read_metadata(get: Get, model: str, version: str | None) -> Metadata:
    """Request a model's metadata from a gateway, which removes X-Model-Metadata, and then from the model itself."""
    parts = [quote(each, safe="") for each in (model, version) if each is not None]
    path = "/v2/models/" + "/versions/".join(parts)
    try:
        try:
            document = get(path, {})
        except ClientError as error:
            # TorchServe has no such path: its 404 has the type of a Java exception, a gateway's has none.
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
        raise ServerFailed(f"{model}: the model does not report its inputs and outputs", 200, "NoMetadata") from error


def _read(document: Json, version: str | None) -> Metadata:
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


def _tensor(document: Json) -> TensorMetadata:
    return TensorMetadata(str(document["name"]), str(document["datatype"]), tuple(map(int, document["shape"])))
