"""The public names of torchserve-client.

Client            one prediction: bytes, a path, text, JSON, lists of them, arrays
FuturesClient     many at once, each a concurrent.futures.Future
ChunkingClient    one input of any length, in chunks, in parallel
Management        register, describe, scale, unregister
Nodes             one call to several servers, and which of them it failed on
Gateway           the gateway's control API: drain nodes, try canaries, withdraw models
"""

from typing import TYPE_CHECKING, Any

from torchserve_client.client import Client, RankedDocument
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
    "RankedDocument",
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
    """Import ChunkingClient, which needs numpy, on first use: the command starts in three quarters of the time."""
    if name != "ChunkingClient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchserve_client.chunking import ChunkingClient  # noqa: PLC0415

    return ChunkingClient
