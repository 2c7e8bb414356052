"""What the protocol says of models, as plain documents; pure.

Fleet, model, version -> metadata, configuration, statistics, index
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from deploy.gateway.control.errors import RequestError
from deploy.gateway.state import Fleet, Model, Version, plain
from deploy.gateway.traffic import Traffic
from torchserve_client.version import VERSION

NAME = "torchserve-batching"
# Of Triton's extensions those that are answered.
EXTENSIONS = ("binary_tensor_data", "parameters", "model_configuration", "statistics")
MANAGEMENT_EXTENSIONS = ("model_repository",)
# What a handler is that says nothing of itself.
UNKNOWN_PLATFORM = "torchserve"
# Datatypes that a configuration names otherwise: it has no word for any, and the value of its own for none.
OTHER_TYPES = {"BYTES": "TYPE_STRING", "ANY": "TYPE_INVALID"}


def server(is_managed: bool) -> dict[str, Any]:
    """Server metadata."""
    extensions = [*EXTENSIONS, *(MANAGEMENT_EXTENSIONS if is_managed else ())]
    return {"name": NAME, "version": VERSION, "extensions": extensions}


def find(fleet: Fleet, name: str, asked: str = "") -> tuple[Model, Version]:
    """Find a version of a model; the default one where none is asked for."""
    model = fleet.models.get(name)
    if model is None:
        raise RequestError(404, f"Request for unknown model: '{name}' is not found")
    version = model.find(asked) if asked else model.default
    if version is None:
        of, versions = f"version {asked}" if asked else "its default version", ", ".join(model.versions)
        raise RequestError(404, f"Request for unknown model: '{name}' {of} is not found; versions: {versions}")
    return model, model.versions[version]


def is_model_ready(fleet: Fleet, version: Version) -> bool:
    """Whether requests for it are answered: on some node that takes requests, all its workers are READY."""
    return any(replica.is_ready for node, replica in version.replicas.items() if node not in fleet.draining)


def metadata(fleet: Fleet, name: str, asked: str = "") -> dict[str, Any]:
    """Model metadata."""
    model, version = find(fleet, name, asked)
    said = _said(fleet, model, version)
    return {
        "name": name,
        "versions": [version.version] if asked else list(model.versions),
        "platform": said.get("platform", UNKNOWN_PLATFORM),
        **{
            kind: [{name: each[name] for name in ("name", "datatype", "shape")} for each in said.get(kind, [])]
            for kind in ("inputs", "outputs")
        },
    }


def configuration(fleet: Fleet, name: str, asked: str = "") -> dict[str, Any]:
    """Triton's model configuration; max_batch_size is the rows that one request may carry.

    Triton's batches are along the first dimension of every tensor, which `dims` leave out. Where a model counts rows
    along another, max_batch_size is 0, and `dims` are whole: to its clients that is a model which takes tensors as they
    are. `parameters` say then what it truly is.
    """
    model, version = find(fleet, name, asked)
    said = _said(fleet, model, version)
    delay_ms = max((replica.max_batch_delay_ms for replica in version.replicas.values()), default=0)
    batch_size = max((replica.batch_size for replica in version.replicas.values()), default=0)
    rows = said.get("max_batch_size")
    rows = rows if isinstance(rows, int) and rows > 0 else 1
    tensors = {kind: list(said.get(kind, [])) for kind in ("inputs", "outputs")}
    # The dimension that counts rows, where it is not the first.
    elsewhere = {each["name"]: each["batch_dim"] for kind in tensors.values() for each in kind if each.get("batch_dim")}
    first = 0 if elsewhere else 1
    # What a configuration has no field for; a proof of each precision that the archive has, as JSON.
    parameters: dict[str, Any] = {"max_batch_size": rows} if elsewhere else {}
    parameters |= {f"batch_dim.{name}": dimension for name, dimension in elsewhere.items()}
    if precision := said.get("precision"):
        parameters["precision"] = precision
    if isinstance(proofs := said.get("proofs"), Mapping):
        parameters |= {f"proof.{name}": json.dumps(proof) for name, proof in proofs.items()}
    named = {name: {"string_value": str(value)} for name, value in parameters.items()}
    return {
        "name": name,
        "platform": said.get("platform", UNKNOWN_PLATFORM),
        "backend": UNKNOWN_PLATFORM,
        "version_policy": {"all": {}},
        "max_batch_size": 0 if elsewhere else rows,
        "input": [_configured(tensor, first) for tensor in tensors["inputs"]],
        "output": [_configured(tensor, first) for tensor in tensors["outputs"]],
        # Requests that TorchServe hands over together, and how long it waits for them.
        "dynamic_batching": {
            "preferred_batch_size": [batch_size] if batch_size > 0 else [],
            "max_queue_delay_microseconds": delay_ms * 1000,
        },
        "instance_group": [
            {"name": name, "kind": "KIND_GPU" if said.get("device") == "cuda" else "KIND_CPU", "count": workers}
            for workers in [sum(replica.workers for replica in version.replicas.values())]
            if workers
        ],
        **({"parameters": named} if named else {}),
    }


def index(fleet: Fleet, *, is_ready_only: bool) -> Iterator[dict[str, str]]:
    """The repository's index: every version that is registered, with its state."""
    for model in fleet.models.values():
        for version in model.versions.values():
            if is_model_ready(fleet, version):
                yield {"name": model.name, "version": version.version, "state": "READY", "reason": ""}
            elif not is_ready_only:
                workers = sum(replica.workers for replica in version.replicas.values())
                state, reason = ("LOADING", "workers are starting") if workers else ("UNAVAILABLE", "no workers")
                yield {"name": model.name, "version": version.version, "state": state, "reason": reason}


def statistics(fleet: Fleet, traffic: Traffic, name: str = "", asked: str = "") -> Iterator[dict[str, Any]]:
    """Triton's statistics of a model's versions, or of every model where no name is given."""
    wanted = [(model, version) for model in fleet.models.values() for version in model.versions.values()]
    if name:
        model, version = find(fleet, name, asked)
        wanted = [(model, each) for each in ([version] if asked else model.versions.values())]
    for model, version in wanted:
        # Triton's tools read numbers: "1" of "1.0", where that finds it again.
        number = plain(version.version)
        numbered = number if number.isdecimal() and model.find(number) == version.version else version.version
        yield {"name": model.name, "version": numbered, **traffic.triton(model.name, version.version)}


def not_ready(model: Model, version: Version) -> RequestError:
    """Return the error of a version without READY workers, in Triton's words."""
    return RequestError(503, f"'{model.name}' version {version.version} is not at ready state")


def _said(fleet: Fleet, model: Model, version: Version) -> dict[str, Any]:
    """What a handler said of itself; nothing, of one that is served and does not know the question."""
    if version.metadata is None and not is_model_ready(fleet, version):
        raise not_ready(model, version)
    return dict(version.metadata or {})


def _configured(tensor: Mapping[str, Any], first: int) -> dict[str, Any]:
    """A tensor as the configuration has it, with the dimensions from `first` on; what takes any datatype has none."""
    datatype = tensor["datatype"]
    return {
        "name": tensor["name"],
        "data_type": OTHER_TYPES.get(datatype, f"TYPE_{datatype}"),
        "dims": tensor["shape"][first:],
    }
