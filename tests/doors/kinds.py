"""The kinds of rows, and the requests that they send."""

from dataclasses import dataclass, field

from tritonclient.grpc import service_pb2

from tests.doors.http2 import INFER

PATH = b"/predictions/double"
MOST = 400  # connections of one client: more than the doors that have a limit here accept


@dataclass(frozen=True)
class Row:
    """A case: all clients see the stated result and other clients are answered, within a bound of memory."""

    name: str
    memory_mib: int | None = field(default=None, kw_only=True)  # by which the door may grow


@dataclass(frozen=True)
class Talk(Row):
    """Bytes of a connection of HTTP/1.1, and what answers them."""

    sends: bytes
    sees: str  # statuses in their order, several with |; one with a ? may be missing
    ends: str = "last"  # what is behind them: the answer of a last request that is sent, or the end of the connection
    answers: tuple[int, ...] = ()  # the numbers that the answers with 200 double
    waits: bool = False  # whether no last request is sent, since the door ends the connection by itself
    is_split: bool = False  # whether it is sent again in two packets, once for each place between two bytes
    connections: int = 1  # that send it at once


@dataclass(frozen=True)
class Together(Row):
    """Connections at once, each with its own bytes."""

    talks: tuple[Talk, ...]


@dataclass(frozen=True)
class Holds(Row):
    """Connections of HTTP that a client holds, and what each of them has sent."""

    sends: bytes
    connections: int = MOST


@dataclass(frozen=True)
class Calls(Row):
    """Calls of gRPC at once of each connection, and the part of a message that each of them sends."""

    calls: int
    connections: int
    message: bytes = b""
    memory_mib: int | None = field(default=100, kw_only=True)


@dataclass(frozen=True)
class Frames(Row):
    """Frames of a connection of HTTP/2, which the door may end."""

    frames: bytes
    memory_mib: int | None = field(default=100, kw_only=True)


@dataclass(frozen=True)
class Asks(Row):
    """One call of gRPC, and the name of its status."""

    message: bytes
    sees: str  # several with |
    method: str = INFER.decode()
    metadata: tuple[tuple[str, str], ...] = ()
    is_packed: bool = False
    memory_mib: int | None = field(default=150, kw_only=True)


def post(
    number: int, *lines: bytes, method: bytes = b"POST", path: bytes = PATH, is_chunked: bool = False, body: bytes = b""
) -> bytes:
    body = body or b'{"x": %d}' % number
    framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % len(body)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    return head(b"Content-Type: application/json", *lines, framing, method=method, path=path) + body


def head(*lines: bytes, method: bytes = b"POST", path: bytes = PATH, version: bytes = b"HTTP/1.1") -> bytes:
    return b"\r\n".join((method + b" " + path + b" " + version, b"Host: a", *lines, b"", b""))


def asking(number: int) -> bytes:
    """Return a call's message."""
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="INT64", shape=[1])
    tensor.contents.int64_contents[:] = [number]
    message: bytes = service_pb2.ModelInferRequest(model_name="double", inputs=[tensor]).SerializeToString()
    return message
