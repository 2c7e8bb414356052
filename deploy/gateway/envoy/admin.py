"""Envoy's admin interface, on a unix socket in its folder: only who may enter that folder can ask."""

import http.client
import os
import socket
from pathlib import Path

from deploy.gateway.envoy.listeners import ADMIN

# Seconds for an answer; it says what is in memory.
TIMEOUT_S = 10.0


class NoAnswer(ConnectionError):
    """Envoy does not run, or does not answer."""


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket, whose path may be longer than the kernel takes."""

    def __init__(self, folder: Path) -> None:
        super().__init__("envoy", timeout=TIMEOUT_S)
        self._folder = folder

    def connect(self) -> None:
        """Connect by way of the folder's descriptor, so that its path may have any length."""
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(TIMEOUT_S)
            self.sock.connect(f"/proc/self/fd/{folder}/{ADMIN}")
        finally:
            os.close(folder)


def ask(run: Path, path: str, method: str = "GET") -> str:
    """Ask Envoy.

    Raises:
        NoAnswer: it does not run, or answers an error.
    """
    connection = _Connection(run)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"Envoy's admin interface, {path.partition('?')[0]}: {type(error).__name__}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise NoAnswer(f"Envoy's admin interface, {path.partition('?')[0]}: status {answer.status}")
    return text
