"""Listeners and certificates for tests over a socket."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.certificates import Certificates
from tests.client.listener import Listener, Reply

Listen = Callable[..., Listener]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Return a function that starts listeners, which the test's end closes."""
    opened: list[Listener] = []

    def start(reply: Reply, tls: ssl.SSLContext | None = None, **options: bool) -> Listener:
        opened.append(Listener(reply, tls, **options))
        return opened[-1]

    yield start
    for listener in opened:
        listener.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(Path(tmp_path_factory.mktemp("certificates")))
