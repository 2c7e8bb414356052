"""What the control process knows of nodes and workers, as Prometheus reads it.

    Fleet, which nodes answered, what was seen of them -> own_metrics -> text, among those of :8002

Envoy counts requests and TorchServe what its workers did; who is ready, who was restarted and what waits in
TorchServe's queue is known here alone.
"""

from collections.abc import Iterable, Iterator, Mapping

from deploy.gateway.state import Fleet
from deploy.gateway.watch import Watch

# Labels by name, and the value.
Samples = Iterable[tuple[Mapping[str, str], int]]
# The metrics, in order: name, type, what it is.
METRICS = (
    ("gateway_node_up", "gauge", "Whether the node gave its metrics when it was asked last."),
    ("gateway_node_draining", "gauge", "Whether the node gets no new requests because somebody decided so."),
    ("gateway_workers", "gauge", "Workers that the version should have on the node."),
    ("gateway_workers_ready", "gauge", "Workers that are READY."),
    ("gateway_worker_restarts_total", "counter", "Times that a worker was seen with another process than before."),
    ("gateway_queued_requests", "gauge", "Requests in TorchServe's queue of the version, when it was asked last."),
)


def own_metrics(fleet: Fleet, up: Mapping[str, bool], watches: Mapping[str, Watch]) -> str:
    """Write them.

    Args:
        fleet: what is served, and who drains.
        up: node -> whether its metrics came.
        watches: node -> what its management API said last.
    """
    versions = [
        ({"node": node, "model": model.name, "version": version.version}, replica)
        for model in fleet.registered.values()
        for version in model.versions.values()
        for node, replica in version.replicas.items()
    ]
    values: dict[str, Samples] = {
        "gateway_node_up": [({"node": node}, int(is_up)) for node, is_up in up.items()],
        "gateway_node_draining": [({"node": node}, int(node in fleet.draining)) for node in fleet.nodes],
        "gateway_workers": [(labels, replica.workers) for labels, replica in versions],
        "gateway_workers_ready": [(labels, replica.ready_workers) for labels, replica in versions],
        "gateway_worker_restarts_total": list(_restarts(watches)),
        "gateway_queued_requests": list(_queued(watches)),
    }
    lines = []
    for name, kind, meaning in METRICS:
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{_written(labels)}}} {value}" for labels, value in values[name]]
    return "\n".join(lines) + "\n"


def _restarts(watches: Mapping[str, Watch]) -> Iterator[tuple[Mapping[str, str], int]]:
    for node, watch in watches.items():
        for (model, version), count in watch.restarts.counts.items():
            yield {"node": node, "model": model, "version": version}, count


def _queued(watches: Mapping[str, Watch]) -> Iterator[tuple[Mapping[str, str], int]]:
    """Leave out nodes that do not answer: what they said last is no news."""
    for node, watch in watches.items():
        for model, versions in watch.models.items() if watch.is_up else ():
            for version, registered in versions.items():
                yield {"node": node, "model": model, "version": version}, registered.queued


def _written(labels: Mapping[str, str]) -> str:
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in labels.items()
    }
    return ",".join(f'{name}="{value}"' for name, value in escaped.items())
