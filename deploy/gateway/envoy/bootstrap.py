"""What Envoy reads once, as it starts: bootstrap.yaml, with what it may take of the machine."""

from deploy.gateway.envoy.resources import Resource, filled
from deploy.gateway.settings import Settings

# Names in Envoy's working folder.
ADMIN = "admin.sock"
CLUSTERS, LISTENERS = "clusters.json", "listeners.json"
# Bytes of heap at the least: Envoy itself, and some hundred bodies on their way.
HEAP_BYTES = 2 << 30
BODIES_ON_HEAP = 16


def bootstrap(settings: Settings) -> Resource:
    """Make the configuration that Envoy starts with."""
    limits = settings.limits
    heap_bytes = max(HEAP_BYTES, BODIES_ON_HEAP * limits.body_bytes)
    made: Resource = filled("bootstrap", admin=ADMIN, heap_bytes=heap_bytes, connections=limits.connections)
    return made
