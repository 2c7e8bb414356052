"""A cluster for each model and for each version: its nodes, and their health checks.

    Fleet -> resnet-152      nodes that have the model; health check: /models/resnet-152 on the management port
          -> resnet-152/1.0  nodes that have this version; health check: /models/resnet-152/1.0
          -> control         the control process

A request without a version goes to the cluster of the model and keeps its path: the node's current default version
answers it. So a rollout that changes the default version loses no request before the gateway has seen the change.

A withdrawn version keeps its cluster, without routes, until no node has it: the cluster counts its requests in flight.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from deploy.gateway.envoy.resources import Resource, fill_template, format_seconds, make_address
from deploy.gateway.settings import GatewaySettings
from deploy.gateway.state import Fleet
from deploy.nodes.run.node import split_address
from torchserve_client.transport import path_of

CONTROL = "control"
DISCOVERY = "/discovery"  # the cluster of bootstrap.yaml; no model's cluster begins with a slash
# The key of a node's tokens in the metadata of its endpoint; cluster.yaml sends each to its API.
TOKENS = "torchserve.tokens"
FAILURES = 3  # failed health checks in a row after which a node receives no new requests
RESETS = 5  # requests in a row that end with a refused or reset connection, after which a node is ejected
# A dot ends a label of Envoy's metrics, and Envoy replaces a colon by _. Different names must stay different.
STAT_NAMES = str.maketrans({".": ",", ",": "%2C", ":": "%3A", "%": "%25"})


class Upstream(NamedTuple):
    """The model, the version (None: the nodes' default version) and the nodes of a cluster."""

    model: str
    version: str | None
    nodes: list[str]

    @property
    def cluster(self) -> str:
        return name_cluster(self.model, self.version)

    @property
    def stat(self) -> str:
        return self.cluster.translate(STAT_NAMES)


def name_cluster(model: str, version: str | None = None) -> str:
    if version is None:
        return model if model != CONTROL else f"{model}/"
    return f"{model}/{version}"


def list_upstreams(fleet: Fleet) -> Iterator[Upstream]:
    """Yield all models, withdrawn ones included, each before its versions."""
    for model in fleet.registered.values():
        nodes = {name for version in model.versions.values() for name in version.placements}
        yield Upstream(model.name, None, sorted(nodes & fleet.nodes.keys()))
        for version in model.versions.values():
            yield Upstream(model.name, version.version, sorted(version.placements.keys() & fleet.nodes.keys()))


def list_clusters(fleet: Fleet, *, is_ready_only: bool = False) -> set[str]:
    """Return the clusters of the models and versions that clients may request, or of those with a READY worker."""
    found = (
        (name, number)
        for name, model in fleet.models.items()
        for number, version in model.versions.items()
        if not is_ready_only or fleet.is_version_ready(version)
    )
    return {name_cluster(name, each) for name, number in found for each in (None, number)}


def make_clusters(settings: GatewaySettings, fleet: Fleet) -> list[Resource]:
    has_tokens = any(node.token_file for node in fleet.nodes.values())
    return [
        _control(settings),
        *_traces(settings),
        *(_model(settings, each, has_tokens=has_tokens) for each in list_upstreams(fleet)),
    ]


def make_endpoints(
    fleet: Fleet, upstream: Upstream, resolve: Callable[[str], str | None], tokens: Mapping[str, Mapping[str, str]]
) -> Resource:
    """Make a cluster's endpoints; one that drains, or whose default version is withdrawn, gets no new requests."""
    found = []
    for name in upstream.nodes:
        node, own = fleet.nodes[name], tokens.get(name, {})
        (host, port), (managed, management_port) = split_address(node.inference), split_address(node.management)
        at, management_at = resolve(host), resolve(managed)
        if at is None or management_at is None:
            continue
        is_out = name in fleet.draining or (
            upstream.version is None and _has_withdrawn_default(fleet, upstream.model, name)
        )
        versions = fleet.registered[upstream.model].versions
        targets = [versions[upstream.version]] if upstream.version else versions.values()
        asked = [each for each in targets if upstream.version or ((on := each.placements.get(name)) and on.is_default)]
        is_out |= any(version.is_left_out(name) for version in asked)
        # Envoy would send requests to an endpoint that is removed here, as long as it is healthy.
        is_out |= all(version.placements[name].is_missing for version in targets if name in version.placements)
        checked = {"port_value": management_port, "address": make_address(management_at, management_port)}
        secrets = {api: {"string_value": f"Bearer {token}"} for api, token in own.items()}
        found.append(
            {
                "endpoint": {"hostname": name, "address": make_address(at, port), "health_check_config": checked},
                "health_status": "DRAINING" if is_out else "UNKNOWN",
                **({"metadata": {"filter_metadata": {TOKENS: {"fields": secrets}}}} if secrets else {}),
            }
        )
    return {"cluster_name": upstream.cluster, "endpoints": [{"lb_endpoints": found}] if found else []}


def _has_withdrawn_default(fleet: Fleet, model: str, node: str) -> bool:
    """Return whether a withdrawn version on a node would answer the model's requests without a version."""
    is_default_out = any(
        (model, version.version) in fleet.withdrawn and (on := version.placements.get(node)) and on.is_default
        for version in fleet.registered[model].versions.values()
    )
    return is_default_out and model in fleet.models


def _model(settings: GatewaySettings, upstream: Upstream, *, has_tokens: bool) -> Resource:
    limits = settings.limits
    interval_s = limits.unresponsive_s / (FAILURES + 1)
    probe_s = max(1, int(interval_s))
    made: Resource = fill_template(
        "cluster",
        "model",
        name=upstream.cluster,
        stat_name=upstream.stat,
        connect_s=format_seconds(limits.attempt_connect_s),
        connections=limits.connections,
        interval_s=format_seconds(interval_s),
        failures=FAILURES,
        path=path_of("models", upstream.model, upstream.version),
        management_token=[fill_template("cluster", "management_token")] if has_tokens else None,
        inference_token={"append": fill_template("cluster", "inference_token")} if has_tokens else None,
        resets=RESETS,
        out_s=format_seconds(limits.unresponsive_s),
        out_ms=max(1000, round(limits.unresponsive_s * 1000)),
        probe_s=probe_s,
        probes=max(1, min(FAILURES, int(limits.unresponsive_s) // probe_s - 1)),
    )
    return made


def _traces(settings: GatewaySettings) -> list[Resource]:
    if settings.traces is None:
        return []
    connect_s, address = (
        format_seconds(settings.limits.attempt_connect_s),
        make_address(*split_address(settings.traces)),
    )
    return [fill_template("cluster", "traces", connect_s=connect_s, address=address)]


def _control(settings: GatewaySettings) -> Resource:
    ports = settings.ports
    made: Resource = fill_template(
        "cluster",
        "control",
        address=make_address(ports.control_address, ports.control),
        connect_s=format_seconds(settings.limits.attempt_connect_s),
    )
    return made
