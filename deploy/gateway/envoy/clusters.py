"""One cluster for every model, and one for every version of it: which nodes have it, and how their health is told.

    Fleet -> resnet-152      nodes that have it, asked on the management port for /models/resnet-152
          -> resnet-152/1.0  nodes that have this version, asked for /models/resnet-152/1.0
          -> control         the control process

A request that names no version goes to the first kind and keeps its path: which version answers is the node's own
default at that moment, so a rollout that changes it loses nothing while the gateway has not seen it yet.

What is withdrawn keeps its clusters, which no route names, until no node has it: they say what is still in flight.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from deploy.gateway.envoy.resources import CLUSTER, ENDPOINTS, Resource, address, only, seconds, sent, typed, watched
from deploy.gateway.settings import Settings
from deploy.gateway.state import Fleet
from deploy.run.node import Node
from deploy.run.node import address as host_and_port

CONTROL = "control"
# Where a node's tokens lie in the metadata of its endpoint.
TOKENS = "torchserve.tokens"


# What no handler reads: a worker takes every header of every request apart, some 10 us of its one core for each.
NOT_FOR_NODES = (
    "x-client",
    "authorization",
    "user-agent",
    "accept-encoding",
    "accept-language",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-attempt-count",
    "x-envoy-internal",
)
# The answers that a handler makes in another form where it is asked to: arrays (handlers.tensor_models.files), pieces
# (handlers.protocol.streaming). Any other Accept says nothing to it.
OTHER_FORMS = sent("accept", "(?i).*(application/x-np[yz]|text/event-stream).*")


@dataclass(frozen=True, slots=True)
class Health:
    """How health is asked for.

    Attributes:
        body_bytes: of a description that is searched; beyond it nothing is found. One worker takes some 400 bytes.
        failures: how many answers in a row are missing before a node gets no new requests.
        resets: how many requests in a row end by a connection that is refused or reset, without any that is answered,
            before a node is left out.
        slow_start_s: seconds in which a node that is new, or back, comes up to its share.
    """

    body_bytes: int = 64 << 10
    failures: int = 3
    resets: int = 5
    slow_start_s: float = 10.0


HEALTH = Health()
# Linux: level IPPROTO_TCP, option TCP_USER_TIMEOUT, in milliseconds.
TCP, USER_TIMEOUT = 6, 18


@dataclass(frozen=True, slots=True)
class Tokens:
    """What TorchServe wants to see of a node's two ports; None where it wants nothing."""

    inference: str | None = None
    management: str | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What one cluster stands for.

    Attributes:
        model, version: version None for the nodes' own default.
        nodes: names of the nodes that have it.
    """

    model: str
    version: str | None
    nodes: tuple[str, ...]

    @property
    def cluster(self) -> str:
        """Name the cluster."""
        return cluster(self.model, self.version)

    @property
    def file(self) -> str:
        """Name the file of its endpoints; a model's name has no slash, so no two are one."""
        return f"endpoints/{quote(self.cluster, safe='')}.json"


def cluster(model: str, version: str | None = None) -> str:
    """Name the cluster of a model, or of one version of it."""
    return model if version is None else f"{model}/{version}"


def served(fleet: Fleet) -> Iterator[Served]:
    """List what the nodes have, each model before its versions; what is withdrawn, too."""
    for model in fleet.registered.values():
        nodes = {name for version in model.versions.values() for name in version.replicas}
        yield Served(model.name, None, tuple(sorted(nodes & fleet.nodes.keys())))
        for version in model.versions.values():
            yield Served(model.name, version.version, tuple(sorted(version.replicas.keys() & fleet.nodes.keys())))


def clusters(settings: Settings, fleet: Fleet) -> list[Resource]:
    """Make all clusters; the endpoints of models are in files of their own."""
    has_tokens = any(node.token_file for node in fleet.nodes.values())
    return [_control(settings), *(_model(settings, each, has_tokens=has_tokens) for each in served(fleet))]


def endpoints(
    fleet: Fleet, each: Served, resolve: Callable[[str], str | None], tokens: Mapping[str, Tokens]
) -> Resource:
    """Make the endpoints of one cluster: its nodes that have an address, those that drain as such.

    A node that drains gets no new request, and keeps those it has. So does, of requests that name no version, one whose
    own default is withdrawn.

    Args:
        fleet: all nodes.
        each: whose endpoints.
        resolve: from a host's name to its IP address; None where there is none.
        tokens: by the node's name.
    """
    found = []
    for name in each.nodes:
        node = fleet.nodes[name]
        host = resolve(host_and_port(node.inference)[0])
        management = resolve(host_and_port(node.management)[0])
        if host is not None and management is not None:
            is_out = name in fleet.draining or (
                each.version is None and _has_withdrawn_default(fleet, each.model, name)
            )
            state = "DRAINING" if is_out else "UNKNOWN"
            found.append(_endpoint(node, host, management, tokens.get(name, Tokens()), state))
    return {"@type": ENDPOINTS, "cluster_name": each.cluster, "endpoints": [{"lb_endpoints": found}] if found else []}


def _has_withdrawn_default(fleet: Fleet, model: str, node: str) -> bool:
    """Whether what a model's other versions still get would be answered by one there that is withdrawn."""
    if model not in fleet.models or model not in fleet.withdrawn:
        return False
    replicas = (version.replicas.get(node) for version in fleet.withdrawn[model].versions.values())
    return any(replica is not None and replica.is_default for replica in replicas)


def _endpoint(node: Node, host: str, management: str, tokens: Tokens, state: str) -> Resource:
    secrets = {
        name: f"Bearer {token}"
        for name, token in (("inference", tokens.inference), ("management", tokens.management))
        if token
    }
    endpoint: Resource = {
        "endpoint": {
            "hostname": node.name,
            "address": address(host, host_and_port(node.inference)[1]),
            "health_check_config": {
                "port_value": host_and_port(node.management)[1],
                "address": address(management, host_and_port(node.management)[1]),
            },
        },
        "health_status": state,
    }
    if secrets:
        endpoint["metadata"] = {"filter_metadata": {TOKENS: secrets}}
    return endpoint


def _model(settings: Settings, each: Served, *, has_tokens: bool) -> Resource:
    limits = settings.limits
    interval_s = limits.unresponsive_s / (HEALTH.failures + 1)
    probe_s = max(1, int(interval_s))
    path = f"/models/{quote(each.model)}" + (f"/{quote(each.version)}" if each.version else "")
    check: Resource = {
        "timeout": seconds(interval_s),
        "interval": seconds(interval_s),
        # Envoy asks a cluster without traffic once a minute, unless told.
        "no_traffic_interval": seconds(interval_s),
        "no_traffic_healthy_interval": seconds(interval_s),
        "unhealthy_threshold": HEALTH.failures,
        "healthy_threshold": 1,
        # A management call that waits for its workers holds one of TorchServe's threads, and every connection that
        # this thread has with it: each question comes on a connection of its own.
        "reuse_connection": False,
        "http_health_check": {
            # Unless told, Envoy sends the cluster's name, and a slash in it is no host to a node's own Envoy.
            "host": "node",
            "path": path,
            "receive": [{"text": b'"status": "READY"'.hex()}],
            "response_buffer_size": HEALTH.body_bytes,
        },
    }
    http: Resource = {"explicit_http_config": {"http_protocol_options": {}}}
    # The gateway's own key is no node's: what comes of it ends here.
    mutations: list[Resource] = [{"remove": name} for name in NOT_FOR_NODES]
    if has_tokens:
        check["http_health_check"]["request_headers_to_add"] = [_bearer("management")]
        mutations.append({"append": _bearer("inference")})
    http["http_filters"] = node_filters(mutations)
    return {
        "@type": CLUSTER,
        "name": each.cluster,
        # A label of metrics ends at a dot.
        "alt_stat_name": each.cluster.replace(".", "_"),
        "type": "EDS",
        "eds_cluster_config": {"eds_config": watched(each.file)},
        "connect_timeout": seconds(limits.attempt_connect_s),
        "load_balancing_policy": {"policies": [{"typed_extension_config": _least_request()}]},
        # A change of health is told to the threads at once, and not with all others of the same second.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}, "update_merge_window": "0s"},
        "health_checks": [check],
        "outlier_detection": _outliers(limits.unresponsive_s),
        "upstream_connection_options": {
            "tcp_keepalive": {
                "keepalive_time": probe_s,
                "keepalive_interval": probe_s,
                "keepalive_probes": max(1, min(HEALTH.failures, int(limits.unresponsive_s) // probe_s - 1)),
            }
        },
        "upstream_bind_config": {
            "socket_options": [
                {
                    "description": "a peer that acknowledges nothing is gone",
                    "level": TCP,
                    "name": USER_TIMEOUT,
                    "int_value": max(1000, round(limits.unresponsive_s * 1000)),
                    "state": "STATE_PREBIND",
                }
            ]
        },
        # Requests wait in TorchServe's queue, whose length is the model's, and never here.
        "circuit_breakers": {"thresholds": [_breaker()]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(
                "", "envoy.extensions.upstreams.http.v3.HttpProtocolOptions", **http
            )["typed_config"]
        },
    }


def node_filters(mutations: list[Resource]) -> list[Resource]:
    """Make the filters of requests on their way to a node: changes of their heads, and no Accept that is of no use."""
    return [
        _heads(mutations),
        only(_heads([{"remove": "accept"}]), {"not_matcher": OTHER_FORMS}),
        typed("envoy.filters.http.upstream_codec", "envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec"),
    ]


def _heads(mutations: list[Resource]) -> Resource:
    return typed(
        "envoy.filters.http.header_mutation",
        "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
        mutations={"request_mutations": mutations},
    )


def _outliers(seconds_out: float) -> Resource:
    """Leave a node out that takes no connections, or resets them, until it is found READY.

    A TorchServe that died and is back between two questions after its health would be sent everything: it refuses at
    once, so it has the fewest requests. What a node answers never counts, a refusal neither.
    """
    never = dict.fromkeys(
        (
            "enforcing_consecutive_5xx",
            "enforcing_consecutive_gateway_failure",
            "enforcing_success_rate",
            "enforcing_local_origin_success_rate",
            "enforcing_failure_percentage",
            "enforcing_failure_percentage_local_origin",
        ),
        0,
    )
    return {
        **never,
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": HEALTH.resets,
        "enforcing_consecutive_local_origin_failure": 100,
        # The answer READY ends it before; a node whose connections break for another reason is not left out for long.
        "base_ejection_time": seconds(seconds_out),
        "max_ejection_time": seconds(seconds_out),
        "max_ejection_percent": 100,
        "interval": "1s",
    }


def _bearer(port: str) -> Resource:
    """Give a node its own token, from the metadata of its endpoint."""
    return {
        "header": {"key": "authorization", "value": f"%UPSTREAM_METADATA({TOKENS}:{port})%"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        "keep_empty_value": False,
    }


def _least_request() -> Resource:
    return typed(
        "envoy.load_balancing_policies.least_request",
        "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
        selection_method="FULL_SCAN",
        slow_start_config={"slow_start_window": seconds(HEALTH.slow_start_s)},
    )


def _breaker() -> Resource:
    many = 1 << 20
    return {
        "max_connections": many,
        "max_pending_requests": many,
        "max_requests": many,
        "max_retries": many,
    }


def _control(settings: Settings) -> Resource:
    ports = settings.ports
    endpoint = {"hostname": CONTROL, "address": address(ports.internal_address, ports.control)}
    return {
        "@type": CLUSTER,
        "name": CONTROL,
        "type": "STATIC",
        "connect_timeout": seconds(settings.limits.attempt_connect_s),
        "load_assignment": {"cluster_name": CONTROL, "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}]},
        "circuit_breakers": {"thresholds": [_breaker()]},
    }
