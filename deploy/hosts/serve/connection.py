"""A connection of HTTP/1.1, by uvicorn and httptools, with the limits of a server that has no proxy in front.

bytes -> heads and bodies -> a task of the application for each request, one after the other -> its answer

A request has one answer, however it is framed, and bytes that are no HTTP end the connection after the answers before.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, ClassVar

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from deploy.hosts.frontend.http import WHOLE, Response, reject
from deploy.hosts.frontend.memory import Hold, Memory
from deploy.hosts.serve.limits import HostLimits
from deploy.protocol import rejections

HEAD, WRITE = "head", "write"  # the states in which a connection waits
MOST_PIPELINED = 64  # requests of a connection that wait for its first
STEADY_REQUESTS = 8  # of a connection, after which it may be ended for another process
CHUNK_BYTES = 8  # bytes around a byte of a body that comes in the smallest chunks
FIRST_S, LAST_S = 5.0, 1.0  # seconds in which a new or an idle connection may send a request once the server ends
CLOSE = {"Connection": "close"}
BAD_REQUEST = reject(rejections.BAD_REQUEST._replace(headers=CLOSE))
NO_TUNNEL = reject(rejections.Rejection(501, "NotImplemented", "CONNECT is not supported.", CLOSE))


def _to_bytes(answer: Response) -> bytes:
    lines = [f"{name}: {value}\r\n".encode("latin-1") for name, value in answer.all_headers.items()]
    return b"".join((STATUS_LINE[answer.status], *lines, b"\r\n", answer.body))


class Joined:
    """A transport that sends a whole answer by one call of the system, in place of one for its head and its body."""

    def __init__(self, transport: Any) -> None:
        self._transport, self._parts = transport, list[bytes]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Keep a part of an answer until `flush`; a client waits for 100 Continue."""
        self._parts.append(data)
        if data.startswith(b"HTTP/1.1 100"):
            self.flush()

    def flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.writelines(parts)

    def close(self) -> None:
        """End the connection after the answer."""
        self.flush()
        self._transport.close()


class Exchange:
    """A request whose body and response are whole: without a timer, and with one check of all headers."""

    __slots__ = ("_cycle", "began_s")

    def __init__(self, cycle: Any) -> None:
        self._cycle, self.began_s = cycle, time.perf_counter()

    def body(self) -> bytes | None:
        cycle = self._cycle
        return None if cycle.more_body or cycle.disconnected else bytes(cycle.body)

    def write(self, answer: Response) -> bool:
        """Write a 200 that nothing delays; uvicorn sends every other."""
        cycle = self._cycle
        headers = {name.lower(): value for name, value in answer.all_headers.items()}
        is_usual = answer.status == 200 and cycle.scope["method"] != "HEAD" and "connection" not in headers
        # uvicorn rejects what could end a header.
        if not is_usual or cycle.disconnected or cycle.flow.write_paused or not "".join(headers.values()).isprintable():
            return False
        cycle.response_started = cycle.response_complete = True
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("latin-1")
        end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        cycle.transport.write(b"".join((STATUS_LINE[200], lines, end, answer.body)))
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True


class Protocol(HttpToolsProtocol):  # type: ignore[misc]
    """A connection with limits; its requests are cancelled if it ends."""

    parser: HttpRequestParser
    limits, memory = HostLimits(), Memory()
    is_ending = False  # whether the server ends: each answer is the last of its connection
    surplus: ClassVar[int] = 0  # connections that end with their next answer, so that their clients go elsewhere
    on_end: ClassVar[Callable[[], None] | None] = None  # called at the end of each connection
    # Connections that wait for their clients, the longest wait first: within a request, and after an answer.
    silent: ClassVar[dict["Protocol", None]] = {}
    idle: ClassVar[dict["Protocol", None]] = {}
    _is_in_head = _is_over = False
    _requests = 0

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head."""
        self._open: set[asyncio.Task[Any]] = set()
        self._extra = 0  # bytes since the last message that are not a body: heads, trailers and chunks' lengths
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._unread = Hold(self.memory)  # an answer that the client does not read
        super().connection_made(Joined(transport))
        self._make_room()
        self._note_silence()
        self._wait(HEAD, self.limits.head_s)

    def _make_room(self) -> None:
        """End an idle or the longest silent one of too many; if all run requests, the next that is idle."""
        most = self.limits.connections
        if len(self.connections) <= most:
            return
        oldest = next(iter(self.idle), None) or next(
            iter(self.silent), self if len(self.connections) > 2 * most else None
        )
        if oldest is not None:
            oldest._forget_silence()
            oldest.transport.abort()
            self.connections.discard(oldest)  # at once, so that one makes room for one

    def data_received(self, data: bytes) -> None:
        """Reject too many bytes around bodies; bytes between requests begin a head, too."""
        if self._is_over:
            return
        self._unset_keepalive_if_required()
        self._extra += len(data)
        try:
            while data:
                data = self._parse(data)
        except HttpParserError:
            self._reject(BAD_REQUEST)
        cycle = self.cycle
        if self._is_in_head or cycle is None or cycle.response_complete:
            self._wait(HEAD, self.limits.head_s)
        elif not cycle.response_started:
            self._end_with_answer(cycle)
        if self._extra > 2 * self.limits.head_bytes and not self._is_over:
            self.transport.abort()
        self._note_silence()

    def _end_with_answer(self, cycle: Any) -> None:
        """Let an answer be the connection's last if the server ends, or if its client shall go elsewhere."""
        if self.is_ending:
            cycle.keep_alive = False
        elif Protocol.surplus > 0 and self._requests > STEADY_REQUESTS and not self.pipeline and cycle.keep_alive:
            cycle.keep_alive = False
            Protocol.surplus -= 1

    def _note_silence(self) -> None:
        """Begin to wait for the client again, unless one of its requests runs."""
        self._forget_silence()
        if not self.pipeline and (self.cycle is None or self.cycle.response_complete or self.cycle.more_body):
            is_within = self.cycle is None or self.cycle.more_body or self._is_in_head
            (self.silent if is_within else self.idle)[self] = None

    def _forget_silence(self) -> None:
        self.silent.pop(self, None)
        self.idle.pop(self, None)

    def _parse(self, data: bytes) -> bytes:
        """Parse bytes; return those to go on with behind a head that asks for another protocol."""
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            # httptools takes what follows for the other protocol, but it is the request's body.
            method, version = self.parser.get_method(), self.parser.get_http_version()
            if method == b"CONNECT":
                self._reject(NO_TUNNEL)
                return b""
            self.parser = HttpRequestParser(self)
            lines = [b"%s %s HTTP/%s" % (method, self.url, version.encode())]
            lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
            return b"\r\n".join([*lines, b"", data[upgrade.args[0] :]])
        return b""

    def _reject(self, answer: Response) -> None:
        """End the connection after the answers before; `answer` is that of the last request if it is not complete."""
        self._is_over, self._is_in_head, cycle = True, False, self.cycle
        self._stop(HEAD)
        if cycle is not None and not (cycle.response_complete or cycle.more_body):
            cycle.keep_alive = False
        elif cycle is not None and cycle.more_body and self.pipeline:
            self.pipeline[0] = (cycle, answer)  # it waits behind others
        elif not self.transport.is_closing():
            # The rest of a body that was rejected has its answer.
            if cycle is None or not (cycle.more_body and cycle.response_started):
                self.transport.write(_to_bytes(answer))
            self.transport.close()
            self._wait(WRITE, self.limits.body_s)

    def on_message_begin(self) -> None:
        """Begin a head; uvicorn would read requests without end while it answers the first."""
        if len(self.pipeline) > MOST_PIPELINED:
            self.transport.abort()
            raise RuntimeError
        super().on_message_begin()
        self._requests += 1
        self._is_in_head = True

    def on_url(self, url: bytes) -> None:
        """Reject a fragment, which no client sends and a gateway rejects."""
        if b"#" in url:
            raise RuntimeError
        super().on_url(url)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # it comes again
        self._is_in_head = False
        self._stop(HEAD)
        super().on_headers_complete()
        self.scope[WHOLE] = Exchange(self.cycle)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start a request, which ends with its connection: a client that leaves cancels its waiting items, too."""
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self._end_task)
        self.tasks.add(task)
        self._open.add(task)

    def _end_task(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        self._open.discard(task)

    def on_body(self, body: bytes) -> None:
        self._extra = max(0, self._extra - (1 + CHUNK_BYTES) * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Go on reading: a large body has paused it, and then nothing would notice that the client leaves."""
        if self.parser.should_upgrade():
            return
        self._extra = 0
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """Send the answer, and read the rest of a rejected body, so that its client reads the answer."""
        self.transport.flush()
        super().on_response_complete()
        if self.transport.is_closing():
            self._wait(WRITE, self.limits.body_s)
        if self.cycle.response_complete and self.cycle.more_body:
            self._wait(HEAD, self.limits.head_s)
        self._note_silence()
        self._make_room()

    def pause_writing(self) -> None:
        """Wait for a client that does not read its answer, but not for ever."""
        super().pause_writing()
        self._wait(WRITE, self.limits.body_s)
        self._unread.wait(self.transport.abort)
        if not self._unread.take(self.transport.get_write_buffer_size()):
            self.transport.abort()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop(WRITE)
        self._unread.free()

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, even if its client has not read its last answer."""
        self.transport.abort()

    def shutdown(self) -> None:
        """End after the running requests, and after one that is on its way to an idle connection."""
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(FIRST_S if self.cycle is None else LAST_S, self._end_if_idle)
        else:
            self.cycle.keep_alive = False

    def _end_if_idle(self) -> None:
        if not self._is_in_head and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the requests of a client that has left."""
        self._forget_silence()
        self._stop(HEAD)
        self._stop(WRITE)
        self._unread.free()
        super().connection_lost(error)
        self.pipeline.clear()
        for task in [*self._open]:
            task.cancel()
        if Protocol.on_end is not None:
            Protocol.on_end()

    def _wait(self, step: str, seconds: float) -> None:
        """End the connection if it does not go on within so many seconds."""
        if step not in self._timers:
            self._timers[step] = self.loop.call_later(seconds, self.transport.abort)

    def _stop(self, step: str) -> None:
        if timer := self._timers.pop(step, None):
            timer.cancel()
