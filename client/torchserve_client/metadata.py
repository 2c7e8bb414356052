"""What a model says of itself: its inputs, its outputs, how many rows a request may carry. Pure.

a handler's own answer to X-Model-Metadata           -> of_handler -> Metadata
the gateway's /v2/models/M and /v2/models/M/config   -> of_gateway -> Metadata
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from torchserve_client.errors import ClientError, ServerFailed, Unavailable

# Of a request to /predictions/M: it is answered with the model's metadata, and nothing runs.
HEADER = "X-Model-Metadata"
# Of an adaptive worker's answer to it: how many other requests the worker has.
IN_FLIGHT = "X-In-Flight"
# Names of a gateway's parameters that hold proofs begin with it; the precision follows.
PROOF = "proof."


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
class Proof:
    """How near answers in a precision are to those in fp32, as the archive's builder measured.

    Attributes:
        measure: what was compared: "top-1", "labels" or "cosine".
        agreement: share of equal answers, 0..1; of vectors the mean cosine.
        largest_change: the most that a probability moved; of vectors 1 - the least cosine; None where there is none.
        samples: how many answers were compared.
        least: the agreement that was asked for.
    """

    measure: str
    agreement: float
    largest_change: float | None
    samples: int
    least: float

    def __str__(self) -> str:
        """Write it for people."""
        change = "" if self.largest_change is None else f", largest change {self.largest_change:.4f}"
        return f"{self.measure} {self.agreement:.4f} of {self.samples} samples{change}"


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a model takes and gives.

    Attributes:
        name, version: as registered; the version is None where that was not said.
        platform: what serves it.
        inputs, outputs: its tensors, in its order; without outputs where only a first run shows them.
        max_batch_size: the most rows that one request may carry; 0 where the model does not say it.
        precision: the arithmetic that serves, as in "bf16"; empty where the model does not say it.
        proofs: how near answers in a precision are to those in fp32, by precision.
    """

    name: str
    version: str | None
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]
    max_batch_size: int
    precision: str = ""
    proofs: Mapping[str, Proof] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


class Get(Protocol):
    """Gets the JSON of a path of one server; raises ClientError."""

    def __call__(self, path: str, headers: Mapping[str, str] | None = None) -> Any:
        """Return what was answered, parsed; None where that was no JSON."""


def asked(get: Get, model: str, version: str | None) -> Metadata:
    """Ask a server for a model's metadata: as a gateway, which keeps X-Model-Metadata from models, and then itself.

    Raises:
        ServerFailed: the model does not know the question.
        ClientError: there was no answer, or there is no such model.
    """
    parts = [quote(each, safe="") for each in (model, version) if each is not None]
    path = "/v2/models/" + "/versions/".join(parts)
    try:
        try:
            document = get(path)
        except ClientError as error:
            if not _has_no_route(error):
                raise
            said = get("/predictions/" + "/".join(parts), {HEADER: "1"})
            return _read(said, said.get("version"))
        config = get(f"{path}/config")
        rest = {"max_batch_size": config["max_batch_size"], **_precisions(config.get("parameters") or {})}
        versions = document["versions"]
        return _read({**document, **rest}, versions[0] if len(versions) == 1 else None)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ServerFailed(f"{model}: it does not say what it takes and gives", 200, "NoMetadata") from error


def is_ready(get: Get, model: str | None = None, version: str | None = None) -> bool:
    """Ask whether a server is ready, or one of its models.

    Args:
        get: asks the server.
        model: the one that is meant, of which some workers must be ready; None means the server: a gateway is ready
            once every model has its workers, a TorchServe where it calls itself healthy.
        version: the model's; None means its default version.

    Raises:
        ClientError: there was no answer, or the server answers nobody without a token.
    """
    if model is None:
        ways: list[Callable[[], Any]] = [lambda: get("/v2/health/ready"), lambda: get("/ping")]
    else:
        parts = [quote(each, safe="") for each in (model, version) if each is not None]
        path = "/v2/models/" + "/versions/".join(parts) + "/ready"
        ways = [lambda: get(path), lambda: get("/predictions/" + "/".join(parts), {HEADER: "1"})]
    for way in ways:
        try:
            way()
        except ClientError as error:
            if not isinstance(error, Unavailable | ServerFailed) and error.status != 404:
                raise
            if not _has_no_route(error):
                return False
        else:
            return True
    return False


def _has_no_route(error: ClientError) -> bool:
    """Return whether TorchServe says that it has no such path: its 404 has the type of Java's, a gateway's has none."""
    return error.status in (404, 405, 501) and error.type.endswith("Exception")


def _read(said: Mapping[str, Any], version: str | None) -> Metadata:
    return Metadata(
        name=str(said["name"]),
        version=version,
        platform=str(said.get("platform", "")),
        inputs=tuple(map(_tensor, said["inputs"])),
        outputs=tuple(map(_tensor, said["outputs"])),
        max_batch_size=int(said.get("max_batch_size", 0)),
        precision=str(said.get("precision") or ""),
        proofs={str(name): _proof(proof) for name, proof in (said.get("proofs") or {}).items()},
    )


def _proof(said: Mapping[str, Any]) -> Proof:
    change = said["largest_change"]
    return Proof(
        measure=str(said["measure"]),
        agreement=float(said["agreement"]),
        largest_change=None if change is None else float(change),
        samples=int(said["samples"]),
        least=float(said["least"]),
    )


def _precisions(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Read what a gateway's configuration says of precisions."""
    texts = {name: str(value["string_value"]) for name, value in parameters.items()}
    proofs = {name.removeprefix(PROOF): json.loads(text) for name, text in texts.items() if name.startswith(PROOF)}
    return {"precision": texts.get("precision", ""), "proofs": proofs}


def _tensor(said: Mapping[str, Any]) -> TensorMetadata:
    return TensorMetadata(str(said["name"]), str(said["datatype"]), tuple(int(size) for size in said["shape"]))
