"""The protocol's documents about models; pure.

Fleet, model, version -> metadata, configuration, statistics, index
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deploy.gateway.control.errors import RequestError
from deploy.gateway.state import Fleet, ServedModel, ServedVersion, strip_zeros
from deploy.gateway.traffic import Traffic
from torchserve_client.version import VERSION

NAME = "torchserve-batching"
# The supported extensions of Triton.
EXTENSIONS = ("binary_tensor_data", "parameters", "model_configuration", "statistics")
MANAGEMENT_EXTENSIONS = ("model_repository",)
# The platform of a handler without metadata.
UNKNOWN_PLATFORM = "torchserve"
# Datatypes with another name in a configuration, which has no name for ANY.
OTHER_TYPES = {"BYTES": "TYPE_STRING", "ANY": "TYPE_INVALID"}


def describe_server(is_managed: bool) -> dict[str, Any]:
    extensions = [*EXTENSIONS, *(MANAGEMENT_EXTENSIONS if is_managed else ())]
    return {"name": NAME, "version": VERSION, "extensions": extensions}


def find(fleet: Fleet, name: str, requested: str = "") -> tuple[ServedModel, ServedVersion]:
    """Find a version of a model, or its default version; raise RequestError if there is none."""
    model = fleet.models.get(name)
    if model is None:
        raise RequestError(404, f"Request for unknown model: '{name}' is not found")
    version = model.find(requested) if requested else model.default
    if version is None:
        lacking, versions = f"version {requested}" if requested else "its default version", ", ".join(model.versions)
        raise RequestError(404, f"Request for unknown model: '{name}' {lacking} is not found; versions: {versions}")
    return model, model.versions[version]


def metadata(fleet: Fleet, name: str, requested: str = "") -> dict[str, Any]:
    model, version = find(fleet, name, requested)
    document = _handler_metadata(fleet, model, version)
    return {
        "name": name,
        "versions": [version.version] if requested else list(model.versions),
        "platform": document.get("platform", UNKNOWN_PLATFORM),
        **{
            kind: [{name: each[name] for name in ("name", "datatype", "shape")} for each in document.get(kind, [])]
            for kind in ("inputs", "outputs")
        },
    }


def configuration(fleet: Fleet, name: str, requested: str = "") -> dict[str, Any]:
    """Return Triton's model configuration; max_batch_size is the maximum number of rows of a request.

    Triton's batches are along the first dimension of every tensor, and `dims` omit it. If a model's rows are along
    another dimension, max_batch_size is 0 and `dims` are complete, which means a model without batching to Triton's
    clients; `parameters` then contain the true values.
    """
    model, version = find(fleet, name, requested)
    document = _handler_metadata(fleet, model, version)
    delay_ms = max((replica.max_batch_delay_ms for replica in version.replicas.values()), default=0)
    batch_size = max((replica.batch_size for replica in version.replicas.values()), default=0)
    rows = document.get("max_batch_size")
    rows = rows if isinstance(rows, int) and rows > 0 else 1
    tensors = {kind: list(document.get(kind, [])) for kind in ("inputs", "outputs")}
    # The dimension of the rows, if it is not the first.
    elsewhere = {each["name"]: each["batch_dim"] for kind in tensors.values() for each in kind if each.get("batch_dim")}
    first = 0 if elsewhere else 1
    # Values without a field in the configuration; the proof of each precision of the archive, as JSON.
    parameters: dict[str, Any] = {"max_batch_size": rows} if elsewhere else {}
    parameters |= {f"batch_dim.{name}": dimension for name, dimension in elsewhere.items()}
    if precision := document.get("precision"):
        parameters["precision"] = precision
    if isinstance(proofs := document.get("proofs"), Mapping):
        parameters |= {f"proof.{name}": json.dumps(proof) for name, proof in proofs.items()}
    named = {name: {"string_value": str(value)} for name, value in parameters.items()}
    return {
        "name": name,
        "platform": document.get("platform", UNKNOWN_PLATFORM),
        "backend": UNKNOWN_PLATFORM,
        "version_policy": {"all": {}},
        "max_batch_size": 0 if elsewhere else rows,
        "input": [_describe_tensor(tensor, first) for tensor in tensors["inputs"]],
        "output": [_describe_tensor(tensor, first) for tensor in tensors["outputs"]],
        # TorchServe's batch size and its delay.
        "dynamic_batching": {
            "preferred_batch_size": [batch_size] if batch_size > 0 else [],
            "max_queue_delay_microseconds": delay_ms * 1000,
        },
        "instance_group": [
            {"name": name, "kind": "KIND_GPU" if document.get("device") == "cuda" else "KIND_CPU", "count": workers}
            for workers in [sum(replica.workers for replica in version.replicas.values())]
            if workers
        ],
        **({"parameters": named} if named else {}),
    }


def index(fleet: Fleet, *, is_ready_only: bool) -> Iterator[dict[str, str]]:
    """Yield every registered version with its state, for the repository's index."""
    for model in fleet.models.values():
        for version in model.versions.values():
            if fleet.is_version_ready(version):
                yield {"name": model.name, "version": version.version, "state": "READY", "reason": ""}
            elif not is_ready_only:
                workers = sum(replica.workers for replica in version.replicas.values())
                state, reason = ("LOADING", "workers are starting") if workers else ("UNAVAILABLE", "no workers")
                yield {"name": model.name, "version": version.version, "state": state, "reason": reason}


def statistics(fleet: Fleet, traffic: Traffic, name: str = "", requested: str = "") -> Iterator[dict[str, Any]]:
    """Yield Triton's statistics of the versions of a model, or of all models."""
    wanted = [(model, version) for model in fleet.models.values() for version in model.versions.values()]
    if name:
        model, version = find(fleet, name, requested)
        wanted = [(model, each) for each in ([version] if requested else model.versions.values())]
    for model, version in wanted:
        # Triton's tools parse integers: "1" for "1.0", if "1" is unambiguous.
        number = strip_zeros(version.version)
        numbered = number if number.isdecimal() and model.find(number) == version.version else version.version
        yield {"name": model.name, "version": numbered, **traffic.triton(model.name, version.version)}


def make_not_ready(model: ServedModel, version: ServedVersion) -> RequestError:
    """Return Triton's error for a version without READY workers."""
    return RequestError(503, f"'{model.name}' version {version.version} is not at ready state")


def _handler_metadata(fleet: Fleet, model: ServedModel, version: ServedVersion) -> dict[str, Any]:
    """Return the handler's metadata; empty for a handler of another project."""
    if version.metadata is None and not fleet.is_version_ready(version):
        raise make_not_ready(model, version)
    return dict(version.metadata or {})


def _describe_tensor(tensor: Mapping[str, Any], first: int) -> dict[str, Any]:
    """Return a tensor of the configuration, with the dimensions from `first` on."""
    datatype = tensor["datatype"]
    return {
        "name": tensor["name"],
        "data_type": OTHER_TYPES.get(datatype, f"TYPE_{datatype}"),
        "dims": tensor["shape"][first:],
    }
