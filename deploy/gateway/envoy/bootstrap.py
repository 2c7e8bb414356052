"""What Envoy reads once, as it starts: where the rest lies, its admin interface, what it may take of the machine."""

from deploy.gateway.envoy.resources import TYPE, Resource, typed, watched
from deploy.gateway.settings import Settings

# In Envoy's working folder, which only its owner may enter.
ADMIN = "admin.sock"
CLUSTERS, LISTENERS = "clusters.json", "listeners.json"
# Bytes of heap at the least: Envoy itself, and some hundred bodies on their way.
HEAP_BYTES = 2 << 30
BODIES_ON_HEAP = 16
HEAP = "envoy.resource_monitors.fixed_heap"
# Shares of the heap from which on the streams that hold most are reset, and at which all that hold much are.
RESET_FROM, RESET_ALL = 0.4, 0.6


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
                    HEAP,
                    "envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
                    max_heap_size_bytes=max(HEAP_BYTES, BODIES_ON_HEAP * limits.body_bytes),
                ),
                typed(
                    "envoy.resource_monitors.global_downstream_max_connections",
                    "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                    max_active_downstream_connections=limits.connections,
                ),
            ],
            # Streams that hold 1 MiB and more are told apart, the largest first.
            "buffer_factory_config": {"minimum_account_to_track_power_of_two": 20},
            "actions": [
                {
                    "name": "envoy.overload_actions.reset_high_memory_stream",
                    "triggers": [
                        {
                            "name": HEAP,
                            "scaled": {"scaling_threshold": RESET_FROM, "saturation_threshold": RESET_ALL},
                        }
                    ],
                },
                {
                    "name": "envoy.overload_actions.reduce_timeouts",
                    "triggers": [{"name": HEAP, "scaled": {"scaling_threshold": 0.5, "saturation_threshold": 0.85}}],
                    "typed_config": {
                        "@type": TYPE + "envoy.config.overload.v3.ScaleTimersOverloadActionConfig",
                        "timer_scale_factors": [
                            {"timer": "HTTP_DOWNSTREAM_CONNECTION_IDLE", "min_timeout": "2s"},
                        ],
                    },
                },
                _at("envoy.overload_actions.shrink_heap", 0.85),
                _at("envoy.overload_actions.disable_http_keepalive", 0.9),
                _at("envoy.overload_actions.stop_accepting_requests", 0.95),
            ],
        },
    }


def _at(action: str, share: float) -> Resource:
    trigger = {"name": HEAP, "threshold": {"value": share}}
    return {"name": action, "triggers": [trigger]}
