"""The server of tests/e2e, for tests that take minutes or need packages."""

from tests.e2e.conftest import archive, gateway, model_store, nothing_registered, registrations, serve, server, variant

__all__ = [
    "archive",
    "gateway",
    "model_store",
    "nothing_registered",
    "registrations",
    "serve",
    "server",
    "variant",
]
