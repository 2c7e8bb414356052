"""Opens the sockets of a transport and knows all that are open, so that another thread can cut them.

    connect -> known, then connecting -> connected -> a connection of urllib3's
    abort   -> every known socket is shut down, and no other becomes known

Becoming known and being cut exclude each other: a socket is known before the server can see it, so that none is left
over that connects while `abort` runs.
"""

import contextlib
import errno
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any

from urllib3.util import wait_for_write

# What connecting without waiting returns while the server has not answered; the second is Windows'.
_IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK)


class Sockets:
    """Sockets that are open, from several threads at once."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._is_aborted = False
        self._lock = threading.Lock()

    def connect(
        self, host: str, port: int, timeout_s: float | None, options: Iterable[tuple[int, int, int | bytes]] = ()
    ) -> socket.socket:
        """Connect to the first address of a host that answers.

        Args:
            host: a name, or an address; of IPv6 in brackets or not.
            port: TCP port.
            timeout_s: most seconds to wait, over all addresses together; None waits as long as the system does. Looking
                the name up is the system's own affair and not part of it.
            options: of the socket, as `setsockopt` takes them.

        Returns:
            The socket, with that timeout.

        Raises:
            socket.gaierror: there is no such name.
            TimeoutError: no address answered in time.
            OSError: every address refused, or `abort` was called; the error is that of the last one.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        refused: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError as error:
                # IPv6, say, that the name has and this machine has not.
                refused = error
                continue
            try:
                for option in options:
                    sock.setsockopt(*option)
                left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
                self._connect(sock, address, left_s)
            except OSError as error:
                sock.close()
                refused = error
            except BaseException:
                sock.close()
                raise
            else:
                sock.settimeout(timeout_s)
                return sock
        raise refused

    def _connect(self, sock: socket.socket, address: Any, left_s: float | None) -> None:
        sock.setblocking(False)
        with self._lock:
            self._check()
            self._open.add(sock)
            # Within the lock, since a socket that is shut down before it connects does so all the same. It takes no
            # time: what takes time is waited for below, where shutting it down ends it.
            error = sock.connect_ex(address)
        if error in _IN_PROGRESS:
            if not wait_for_write(sock, left_s):
                raise TimeoutError("no answer in time")
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))

    def add(self, sock: socket.socket) -> None:
        """Make a socket known that came to be in another way.

        Raises:
            ConnectionAbortedError: `abort` was called.
        """
        with self._lock:
            self._check()
            self._open.add(sock)

    def abort(self) -> None:
        """Shut every socket down, and open no other; a thread that waits for one gets an error at once."""
        with self._lock:
            self._is_aborted = True
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _check(self) -> None:
        if self._is_aborted:
            raise ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))
