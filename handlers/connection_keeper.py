"""Keep a classic worker's connection open for a moment after the worker was killed.

If the connection closes while TorchServe's frontend fills a batch, its requests get no answer; if it closes after the
batch was sent, TorchServe answers them. So a small process, the keeper, shares the connection:

    the worker is killed while it runs a batch -> the keeper ends at once: TorchServe answers that batch
    the worker is killed between two batches   -> the keeper ends when a batch arrives, or after WAIT_S
    the frontend closes the connection         -> the keeper ends at once
"""

import inspect
import logging
import os
import socket
import subprocess
import sys

logger = logging.getLogger(__name__)

WAIT_S = 1.0  # the longest wait for a batch, in seconds: the longest `max_batch_delay` whose requests are answered
# Polling `state` without an event reports only that its last writer has ended. A byte in it means that a batch runs.
KEEPER = """
import os, select, sys
connection, state, wait_ms = map(int, sys.argv[1:])
ends = select.poll()
ends.register(connection, select.POLLRDHUP)
ends.register(state, 0)
if connection not in dict(ends.poll()) and not os.read(state, 1):
    batch = select.poll()
    batch.register(connection, select.POLLIN | select.POLLRDHUP)
    batch.poll(wait_ms)
"""


class ConnectionKeeper:
    """The keeper of one worker; a batch runs inside `with`. If it cannot be started, the connection is not kept."""

    def __init__(self, connection: socket.socket) -> None:
        self._state, self._batches = os.pipe()
        shared = connection.fileno(), self._state
        command = [sys.executable, "-I", "-S", "-c", KEEPER, *map(str, shared), str(int(1000 * WAIT_S))]
        null = subprocess.DEVNULL
        try:
            # Not the worker's output, whose end TorchServe waits for.
            self._process = subprocess.Popen(
                command, pass_fds=shared, stdin=null, stdout=null, stderr=null, start_new_session=True
            )
        except OSError as error:
            logger.warning(
                "The connection's keeper cannot start: %s. If this worker is killed, requests of a batch that "
                "TorchServe is filling get no answer; raise the limit of processes",
                error,
            )

    def __enter__(self) -> None:
        os.write(self._batches, b"b")

    def __exit__(self, *_: object) -> None:
        os.read(self._state, 1)


def frontend_connection() -> socket.socket | None:
    """Return TorchServe's connection to this worker, a variable of the caller that loads a model; None elsewhere."""
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(connection := frame.f_locals.get("cl_socket"), socket.socket):
            return connection
        frame = frame.f_back
    return None
