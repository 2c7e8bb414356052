"""What Envoy reads once, as it starts: where the rest lies, its admin interface, what it may take of the machine."""

from deploy.gateway.envoy.resources import Resource, typed, watched
from deploy.gateway.settings import Settings

# In Envoy's working folder, which only its owner may enter.
ADMIN = "admin.sock"
CLUSTERS, LISTENERS = "clusters.json", "listeners.json"
# Bytes of heap at the least: Envoy itself, and some hundred bodies on their way.
HEAP_BYTES = 2 << 30
BODIES_ON_HEAP = 16


def bootstrap(settings: Settings) -> Resource:
    """Make the configuration that Envoy starts with."""
    limits = settings.limits
    return {
        "node": {"id": "gateway", "cluster": "gateway"},
        "admin": {"address": {"pipe": {"path": ADMIN, "mode": 0o600}}},
        "dynamic_resources": {"cds_config": watched(CLUSTERS), "lds_config": watched(LISTENERS)},
        "overload_manager": {
            "refresh_interval": "0.250s",
            "resource_monitors": [
                typed(
                    "envoy.resource_monitors.fixed_heap",
                    "envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
                    max_heap_size_bytes=max(HEAP_BYTES, BODIES_ON_HEAP * limits.body_bytes),
                ),
                typed(
                    "envoy.resource_monitors.global_downstream_max_connections",
                    "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                    max_active_downstream_connections=limits.connections,
                ),
            ],
            "actions": [
                _at("envoy.overload_actions.shrink_heap", 0.85),
                _at("envoy.overload_actions.disable_http_keepalive", 0.9),
                _at("envoy.overload_actions.stop_accepting_requests", 0.95),
            ],
        },
    }


def _at(action: str, share: float) -> Resource:
    trigger = {"name": "envoy.resource_monitors.fixed_heap", "threshold": {"value": share}}
    return {"name": action, "triggers": [trigger]}
