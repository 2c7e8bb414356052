"""The protocol's documents about the fleet's models; pure.

Fleet, model, version -> metadata, configuration, statistics, index
"""

from collections.abc import Iterator
from typing import Any

from deploy.gateway.state import Fleet, ServedModel, ServedVersion
from deploy.gateway.traffic import Traffic
from deploy.protocol import description
from deploy.protocol.description import strip_zeros
from deploy.protocol.errors import not_ready, unknown_model, unknown_version


def find(fleet: Fleet, name: str, requested: str = "") -> tuple[ServedModel, ServedVersion]:
    """Find a version of a model, or its default version; raise RequestError if there is none."""
    model = fleet.models.get(name)
    if model is None:
        raise unknown_model(name)
    version = model.find(requested) if requested else model.default
    if version is None:
        raise unknown_version(name, requested, ", ".join(model.versions))
    return model, model.versions[version]


def metadata(fleet: Fleet, name: str, requested: str = "") -> dict[str, Any]:
    model, version = find(fleet, name, requested)
    versions = [version.version] if requested else list(model.versions)
    return description.metadata(name, versions, _handler_metadata(fleet, model, version))


def configuration(fleet: Fleet, name: str, requested: str = "") -> dict[str, Any]:
    model, version = find(fleet, name, requested)
    replicas = version.replicas.values()
    return description.configuration(
        name,
        _handler_metadata(fleet, model, version),
        workers=sum(replica.workers for replica in replicas),
        batch_size=max((replica.batch_size for replica in replicas), default=0),
        delay_ms=max((replica.max_batch_delay_ms for replica in replicas), default=0),
    )


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


def _handler_metadata(fleet: Fleet, model: ServedModel, version: ServedVersion) -> dict[str, Any]:
    """Return the handler's metadata; empty for a handler of another project."""
    if version.metadata is None and not fleet.is_version_ready(version):
        raise not_ready(model.name, version.version)
    return dict(version.metadata or {})
