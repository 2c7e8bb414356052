"""A model, or a version of it, off the routes while it is still on its nodes: so that it can be unregistered.

    PUT /control/models/M -> Decisions -> Fleet.withdrawn: clusters without a route -> their requests in flight

TorchServe answers nothing of a batch that is being filled when its model is unregistered. What is withdrawn gets no new
request; what is in flight for it comes down to none.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deploy.gateway.control import description
from deploy.gateway.control.errors import BadRequest
from deploy.gateway.envoy.clusters import cluster
from deploy.gateway.state import Fleet, Model


def find(fleet: Fleet, name: str, asked: str | None) -> tuple[Model, str | None]:
    """Find a model on the nodes, and the version of it that is meant, None for all; withdrawn or not.

    Raises:
        NotFound: no node has it.
    """
    everything = replace(fleet, models=fleet.registered)
    if asked is None and name in everything.models:
        return everything.models[name], None
    model, version = description.find(everything, name, asked or "")
    return model, version.version


def check(fleet: Fleet, model: Model, version: str) -> None:
    """Check that requests without a version are still answered where others of its versions are.

    Raises:
        BadRequest: they would not be, since it is the default everywhere.
    """
    others = (
        [each for name, each in fleet.models[model.name].versions.items() if name != version]
        if (model.name in fleet.models)
        else []
    )
    if others and not any(replica.is_default for each in others for replica in each.replicas.values()):
        raise BadRequest(
            f"version {version} of {model.name} is its default version: make another the default, or withdraw the model"
        )


def document(
    fleet: Fleet, model: Model, version: str | None, requests: Mapping[str, Mapping[str, int]] | None
) -> dict[str, Any]:
    """Describe it as JSON has it.

    Args:
        fleet: what is served, and what is not.
        model: a model on the nodes.
        version: one of its versions; None for all together.
        requests: cluster -> node -> requests in flight; None where that is not known.
    """
    served = fleet.models.get(model.name)
    return {
        "model": model.name,
        "version": version,
        "is_withdrawn": served is None or (version is not None and version not in served.versions),
        "in_flight": None if requests is None else _in_flight(model, version, requests),
    }


def _in_flight(model: Model, version: str | None, requests: Mapping[str, Mapping[str, int]]) -> int:
    """Count requests; of those without a version a node's own default has them, as far as the gateway can know."""
    unnamed = requests.get(cluster(model.name), {})
    if version is None:
        named = [requests.get(cluster(model.name, each), {}) for each in model.versions]
        return sum(sum(each.values()) for each in (unnamed, *named))
    replicas = model.versions[version].replicas
    return sum(requests.get(cluster(model.name, version), {}).values()) + sum(
        count for node, count in unnamed.items() if node in replicas and replicas[node].is_default
    )
