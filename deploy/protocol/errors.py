"""Rejected requests: the statuses of HTTP and of gRPC."""

from handlers.protocol.statuses import meaning_of


class RequestError(Exception):
    """A rejected request; the client receives the message."""

    def __init__(self, status: int, message: str, grpc_status: int | None = None) -> None:
        """Reject with a status of HTTP, and its usual status of gRPC unless another is passed."""
        super().__init__(message)
        self.status = status
        self.grpc_status = meaning_of(status).grpc if grpc_status is None else grpc_status


def unknown_model(name: str) -> RequestError:
    """Return Triton's error for an unknown model."""
    return RequestError(404, f"Request for unknown model: '{name}' is not found")


def unknown_version(name: str, version: str, known: str) -> RequestError:
    """Return Triton's error for an unknown version; "" is a missing default version."""
    lacking = f"version {version}" if version else "its default version"
    return RequestError(404, f"Request for unknown model: '{name}' {lacking} is not found; versions: {known}")


def not_ready(name: str, version: str, reason: str = "") -> RequestError:
    """Return Triton's error for a version without READY workers."""
    return RequestError(503, f"'{name}' version {version} is not at ready state{reason and ': '}{reason}")
