"""One cluster for every model, and one for every version of it: which nodes have it, and how their health is found.

    Fleet -> resnet-152      nodes that have it, asked on the management port for /models/resnet-152
          -> resnet-152/1.0  nodes that have this version, asked for /models/resnet-152/1.0
          -> control         the control process

A request that names no version goes to the first kind and keeps its path: which version answers is the node's own
default at that moment, so a rollout that changes it loses nothing while the gateway has not seen it yet.

What is withdrawn keeps its clusters, which no route names, until no node has it: they say what is still in flight.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote

from deploy.gateway.envoy.resources import ENDPOINTS, Resource, address, filled, seconds, watched
from deploy.gateway.settings import Settings
from deploy.gateway.state import Fleet
from deploy.run.node import address as host_and_port

CONTROL = "control"
# Where a node's tokens lie in the metadata of its endpoint, from which cluster.yaml sends each to its API.
TOKENS = "torchserve.tokens"
# Health answers in a row that are missing before a node gets no new requests.
FAILURES = 3
# Requests in a row that end by a connection refused or reset, none answered between, before a node is left out.
RESETS = 5
# Characters of a file's name, which has 255 bytes at most with what files.py adds.
FILE_NAME = 200
# A dot ends a label of Envoy's metrics, and Envoy writes a colon as _. No two names may become one.
STAT_NAMES = str.maketrans({".": ",", ",": "%2C", ":": "%3A", "%": "%25"})


class Served(NamedTuple):
    """What one cluster stands for: a model, a version of it (None: the nodes' own default), and its nodes' names."""

    model: str
    version: str | None
    nodes: list[str]

    @property
    def cluster(self) -> str:
        """Name the cluster."""
        return cluster(self.model, self.version)

    @property
    def file(self) -> str:
        """Name the file of its endpoints; a model's name has no slash, so no two are one."""
        name = quote(self.cluster, safe="")
        if len(name) > FILE_NAME:
            # No quoted name has "=".
            name = f"{name[:100]}={hashlib.sha256(name.encode()).hexdigest()}"
        return f"endpoints/{name}.json"

    @property
    def stat(self) -> str:
        """Name its statistics."""
        return self.cluster.translate(STAT_NAMES)


def cluster(model: str, version: str | None = None) -> str:
    """Name the cluster of a model, or of one version of it."""
    if version is None:
        return model if model != CONTROL else f"{model}/"
    return f"{model}/{version}"


def served(fleet: Fleet) -> Iterator[Served]:
    """List what the nodes have, each model before its versions; what is withdrawn, too."""
    for model in fleet.registered.values():
        nodes = {name for version in model.versions.values() for name in version.replicas}
        yield Served(model.name, None, sorted(nodes & fleet.nodes.keys()))
        for version in model.versions.values():
            yield Served(model.name, version.version, sorted(version.replicas.keys() & fleet.nodes.keys()))


def clusters(settings: Settings, fleet: Fleet) -> list[Resource]:
    """Make all clusters; the endpoints of models are in files of their own."""
    has_tokens = any(node.token_file for node in fleet.nodes.values())
    return [_control(settings), *(_model(settings, each, has_tokens=has_tokens) for each in served(fleet))]


def endpoints(
    fleet: Fleet, each: Served, resolve: Callable[[str], str | None], tokens: Mapping[str, Mapping[str, str]]
) -> Resource:
    """Make the endpoints of one cluster: its nodes that have an address, those that drain as such.

    A node that drains gets no new request, and keeps those it has. So does, of requests that name no version, one whose
    own default is withdrawn. `resolve` returns the IP address of a host, and `tokens` are by node and API.
    """
    found = []
    for name in each.nodes:
        node, own = fleet.nodes[name], tokens.get(name, {})
        (host, port), (managed, management_port) = host_and_port(node.inference), host_and_port(node.management)
        at, management_at = resolve(host), resolve(managed)
        if at is None or management_at is None:
            continue
        is_out = name in fleet.draining or (each.version is None and _has_withdrawn_default(fleet, each.model, name))
        versions = fleet.registered[each.model].versions
        asked = [versions[each.version]] if each.version else versions.values()
        # Envoy would send requests to a node that is left out here for as long as it finds it healthy.
        is_out |= all(version.replicas[name].is_missing for version in asked if name in version.replicas)
        checked = {"port_value": management_port, "address": address(management_at, management_port)}
        secrets = {api: f"Bearer {token}" for api, token in own.items()}
        found.append(
            {
                "endpoint": {"hostname": name, "address": address(at, port), "health_check_config": checked},
                "health_status": "DRAINING" if is_out else "UNKNOWN",
                **({"metadata": {"filter_metadata": {TOKENS: secrets}}} if secrets else {}),
            }
        )
    return {"@type": ENDPOINTS, "cluster_name": each.cluster, "endpoints": [{"lb_endpoints": found}] if found else []}


def _has_withdrawn_default(fleet: Fleet, model: str, node: str) -> bool:
    """Whether what a model's other versions still get would be answered by one there that is withdrawn."""
    return model in fleet.models and any(
        (model, version.version) in fleet.withdrawn and node in version.replicas and version.replicas[node].is_default
        for version in fleet.registered[model].versions.values()
    )


def _model(settings: Settings, each: Served, *, has_tokens: bool) -> Resource:
    limits = settings.limits
    interval_s = limits.unresponsive_s / (FAILURES + 1)
    probe_s = max(1, int(interval_s))
    made: Resource = filled(
        "cluster",
        "model",
        name=each.cluster,
        stat_name=each.stat,
        endpoints=watched(each.file),
        connect_s=seconds(limits.attempt_connect_s),
        connections=limits.connections,
        interval_s=seconds(interval_s),
        failures=FAILURES,
        path=f"/models/{quote(each.model, safe='')}" + (f"/{quote(each.version, safe='')}" if each.version else ""),
        management_token=[filled("cluster", "management_token")] if has_tokens else None,
        inference_token={"append": filled("cluster", "inference_token")} if has_tokens else None,
        resets=RESETS,
        out_s=seconds(limits.unresponsive_s),
        out_ms=max(1000, round(limits.unresponsive_s * 1000)),
        probe_s=probe_s,
        probes=max(1, min(FAILURES, int(limits.unresponsive_s) // probe_s - 1)),
    )
    return made


def _control(settings: Settings) -> Resource:
    ports = settings.ports
    made: Resource = filled(
        "cluster",
        "control",
        address=address(ports.control_address, ports.control),
        connect_s=seconds(settings.limits.attempt_connect_s),
    )
    return made
