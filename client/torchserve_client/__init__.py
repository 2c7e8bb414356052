"""The names that a caller of the server imports.

Client            one prediction: bytes, a path, text, JSON, lists of them, arrays
FuturesClient     many at once, each a concurrent.futures.Future
ChunkingClient    one input of any length, in chunks, in parallel
Management        register, describe, scale, unregister
Nodes             the same call to several servers, and which of them did it
Gateway           the gateway's control API: nodes taken out, canaries, models withdrawn
"""

from typing import TYPE_CHECKING, Any

from torchserve_client.client import Client, Ranked
from torchserve_client.errors import (
    ChunksFailed,
    ClientError,
    Closed,
    DeadlineExceeded,
    InvalidPayload,
    ItemFailed,
    LoadFailed,
    ManagementError,
    NoConnection,
    NodesFailed,
    NotReady,
    Rejected,
    RolloutFailed,
    ServerFailed,
    TLSFailed,
    Unavailable,
    Unreachable,
    raise_failed,
)
from torchserve_client.futures import FuturesClient
from torchserve_client.gateway import Gateway
from torchserve_client.management import Management
from torchserve_client.nodes import Nodes
from torchserve_client.retry import RetryPolicy

if TYPE_CHECKING:
    from torchserve_client.chunking import ChunkingClient

__all__ = [
    "ChunkingClient",
    "ChunksFailed",
    "Client",
    "ClientError",
    "Closed",
    "DeadlineExceeded",
    "FuturesClient",
    "Gateway",
    "InvalidPayload",
    "ItemFailed",
    "LoadFailed",
    "Management",
    "ManagementError",
    "NoConnection",
    "Nodes",
    "NodesFailed",
    "NotReady",
    "Ranked",
    "Rejected",
    "RetryPolicy",
    "RolloutFailed",
    "ServerFailed",
    "TLSFailed",
    "Unavailable",
    "Unreachable",
    "raise_failed",
]


def __getattr__(name: str) -> Any:
    """Import what needs numpy when it is asked for: `torchserve-client` starts in three quarters of the time."""
    if name != "ChunkingClient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchserve_client.chunking import ChunkingClient  # noqa: PLC0415

    return ChunkingClient
