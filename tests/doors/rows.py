"""The table. Each door serves a model that doubles a number: {"x": 4} -> {"y":8}, at the path that PATH stands for."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field

PATH = b"/PATH"  # the door's path of predictions takes its place
LARGE_BYTES = 6_000_000  # below the limit of a body, 6 MiB
LARGE = b'{"x": 3}'.ljust(LARGE_BYTES)


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    #: The packets of one connection, and seconds between them.
    sends: tuple[bytes | float, ...] = ()
    #: Statuses in their order, several with |; "end" if the server then ends the connection, which else serves on.
    sees: tuple[str, ...] = ()
    answers: tuple[int, ...] = ()  # the doubled numbers of the answers with 200
    is_split: bool = False  # whether it is sent again in two packets, once for each place between two bytes
    connections: int = 1  # that send it at once
    #: Calls of gRPC at once of each connection, and the part of a message that each of them sends.
    calls: int = 0
    message: bytes = b""
    memory_mib: int | None = None  # by which the door may grow
    #: A door that cannot keep the row -> why; SECURITY.md has it, too.
    lacks: Mapping[str, str] = field(default_factory=dict)


def post(number: int, *lines: bytes, method: bytes = b"POST", is_chunked: bool = False, body: bytes = b"") -> bytes:
    body = body or b'{"x": %d}' % number
    framing = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: %d" % len(body)
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    head = (method + b" " + PATH + b" HTTP/1.1", b"Host: a", b"Content-Type: application/json", *lines, framing)
    return b"\r\n".join((*head, b"", body))


# A request in the body of another one: it must never run.
INNER = b"POST /predictions/hidden HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
HIDING = b'{"x": 1}' + INNER
UPGRADES = {
    "h2c, as Java's and curl ask": (
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AA",
    ),
    "websocket": (b"Connection: keep-alive, Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"),
    "TLS/1.2, as Apache's client asks": (b"Upgrade: TLS/1.2", b"Connection: upgrade"),
    "nothing": (b"Connection: Upgrade", b"Upgrade: "),
    "two": (b"Connection: Upgrade", b"Upgrade: h2c, websocket", b"Upgrade: x"),
}
TUNNEL = post(0, method=b"CONNECT", body=HIDING)
PACKED = gzip.compress(LARGE, 9)
BAD_CHUNK = b"POST " + PATH + b' HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{"x": 9}0\r\n\r\n'
ENDLESS = b"[" * 500_001 + b'"' + b'\\"' * 1_000_000
GARBAGE = b"\x00\x01 no HTTP\r\n\r\n" + INNER

HTTP = (
    *(
        Row(
            name=f"an upgrade to {name}, {'chunked' if is_chunked else 'with a length'}",
            sends=(post(4, *lines, is_chunked=is_chunked),),
            sees=("200",),
            answers=(8,),
            is_split=True,
        )
        for name, lines in UPGRADES.items()
        for is_chunked in (False, True)
    ),
    Row(
        name="an upgrade whose body hides a request",
        sends=(post(0, *UPGRADES["websocket"], body=HIDING),),
        sees=("400",),
        is_split=True,
    ),
    Row(name="two upgrades in a row", sends=(post(4, *UPGRADES["nothing"]) * 2,), sees=("200", "200"), answers=(8, 8)),
    Row(
        name="CONNECT with a body that hides a request",
        sends=(TUNNEL,),
        sees=("400|404|405|501", "end"),
        is_split=True,
    ),
    Row(
        name="CONNECT behind a request",
        sends=(post(4) + post(0, method=b"CONNECT"),),
        sees=("200", "end"),
        answers=(8,),
    ),
    Row(name="a request", sends=(post(4),), sees=("200",), answers=(8,), is_split=True),
    Row(
        name="three requests in one packet",
        sends=(post(1) + post(2, is_chunked=True) + post(3),),
        sees=("200",) * 3,
        answers=(2, 4, 6),
    ),
    Row(name="bytes that are no HTTP", sends=(GARBAGE,), sees=("400", "end")),
    Row(name="bytes that are no HTTP behind a request", sends=(post(4) + GARBAGE,), sees=("200", "end"), answers=(8,)),
    Row(name="a broken chunk", sends=(BAD_CHUNK + INNER,), sees=("400", "end")),
    Row(
        name="a broken chunk behind a request",
        sends=(post(4) + BAD_CHUNK + INNER,),
        sees=("200", "400", "end"),
        answers=(8,),
    ),
    Row(
        name="a body that is refused, and then a broken chunk",
        sends=(post(0, is_chunked=True, body=LARGE * 2)[:-7] + b"x\r\n" + INNER,),
        sees=("413", "end"),
    ),
    Row(name="lists, and a text without an end", sends=(post(0, body=ENDLESS),), sees=("400|413",)),
    Row(
        name="100 bodies of 6 KB that inflate to 6 MB",
        sends=(post(0, b"Content-Encoding: gzip", body=PACKED),),
        sees=("200|503",),
        connections=100,
        memory_mib=300,
    ),
    Row(name="100 bodies of 6 MB", sends=(post(0, body=LARGE),), sees=("200|503",), connections=100, memory_mib=300),
)

GRPC = (
    Row(name="1,100 calls without a message on one connection", calls=1100, memory_mib=100),
    Row(name="1,100 calls without a message on eleven connections", calls=100, connections=11, memory_mib=100),
    Row(
        name="60 messages of 6 MB that lack a byte",
        calls=1,
        connections=60,
        message=b"\0" + LARGE_BYTES.to_bytes(4) + bytes(LARGE_BYTES - 1),
        memory_mib=200,
    ),
)
