"""Opens the sockets of a transport and knows all that are open, so that another thread can cut them.

    connect -> known, then connecting -> connected -> a connection of urllib3's
    abort   -> every known socket is shut down, and no other becomes known

Becoming known and being cut exclude each other: a socket is known before the server can see it, so that none is left
over that connects while `abort` runs.

The timeout of such a socket is a deadline: it bounds everything that is read and written from then on, together. A
plain socket's bounds each wait for bytes, so that a server which sends a byte now and then holds its client for ever.
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


class Deadline(socket.socket):
    """A socket whose timeout runs from when it is set, over all that follows; `_arm` goes before each wait."""

    _until_s: float | None = None

    def settimeout(self, value: float | None) -> None:
        """Bound what follows until this is called again, in seconds; None lets it last."""
        self._until_s = None if value is None else time.monotonic() + value
        super().settimeout(value)

    def gettimeout(self) -> float | None:
        """Return the seconds that are left; never 0, which would mean not to wait at all."""
        return left_s(self._until_s)

    def _arm(self) -> None:
        if self._until_s is None:
            return
        if (left := self._until_s - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        super().settimeout(left)


class PlainSocket(Deadline):
    """A socket without TLS, as http.client uses it."""

    def recv_into(self, *arguments: Any, **keywords: Any) -> int:
        """Receive within what is left."""
        self._arm()
        return super().recv_into(*arguments, **keywords)

    def sendall(self, *arguments: Any, **keywords: Any) -> None:
        """Send everything within what is left."""
        self._arm()
        super().sendall(*arguments, **keywords)


def left_s(until_s: float | None) -> float | None:
    """Return the seconds until a moment of `time.monotonic`; never 0 or less, which sockets take for "do not wait"."""
    return None if until_s is None else max(1e-6, until_s - time.monotonic())


class Sockets:
    """Sockets that are open, from several threads at once."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._is_aborted = False
        self._lock = threading.Lock()

    def connect(
        self, host: str, port: int, timeout_s: float | None, options: Iterable[tuple[int, int, int | bytes]] = ()
    ) -> PlainSocket:
        """Connect to the first address of a host that answers.

        Args:
            host: a name, or an address; of IPv6 in brackets or not.
            port: TCP port.
            timeout_s: most seconds to wait, over all addresses together; None waits as long as the system does. Looking
                the name up is the system's own affair and not part of it.
            options: of the socket, as `setsockopt` takes them.

        Returns:
            The socket, whose timeout is what is left.

        Raises:
            socket.gaierror: there is no such name.
            TimeoutError: no address answered in time.
            OSError: every address refused, or `abort` was called; the error is that of the last one.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        refused: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM):
            try:
                sock = PlainSocket(family, kind, protocol)
            except OSError as error:
                # IPv6, say, that the name has and this machine has not.
                refused = error
                continue
            try:
                for option in options:
                    sock.setsockopt(*option)
                self._connect(sock, address, left_s(until_s))
            except OSError as error:
                sock.close()
                refused = error
            except BaseException:
                sock.close()
                raise
            else:
                sock.settimeout(left_s(until_s))
                return sock
        raise refused

    def _connect(self, sock: socket.socket, address: Any, timeout_s: float | None) -> None:
        sock.setblocking(False)
        with self._lock:
            self._check()
            self._open.add(sock)
            # Within the lock, since a socket that is shut down before it connects does so all the same. It takes no
            # time: what takes time is waited for below, where shutting it down ends it.
            error = sock.connect_ex(address)
        if error in _IN_PROGRESS:
            if not wait_for_write(sock, timeout_s):
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
                    # Not sock.shutdown: that of TLS takes the socket apart under the thread that reads from it.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _check(self) -> None:
        if self._is_aborted:
            raise ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED))
