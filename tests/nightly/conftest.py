"""The server of tests/e2e, for tests that take minutes or need packages."""

from tests.e2e.conftest import archive, gateway, model_store, registrations, serve, server, variant  # noqa: F401
