"""The table. Each door serves a model that doubles a number: {"x": 4} -> {"y":8}."""

import gzip
import re
import struct
import zlib

import grpc

from handlers.protocol.statuses import meaning_of
from tests.doors.http2 import CONTINUATION, DATA, END_HEADERS, HEADERS, INFER, PING, RESET, SETTINGS, call, frame, line
from tests.doors.kinds import PATH, Asks, Calls, Frames, Holds, Row, Talk, Together, asking, head, post

LARGE_BYTES = 6_000_000  # below the limit of a body, 6 MiB
LARGE = b'{"x": 3}'.ljust(LARGE_BYTES)

# A request in the body of another one: it must never run.
INNER = post(13)
HIDING = b'{"x": 1}' + INNER
KEY = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
UPGRADES = {
    "h2c, as Java's and curl ask": (
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AA",
    ),
    "websocket": (b"Connection: keep-alive, Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13", KEY),
    "TLS/1.2, as Apache's client asks": (b"Upgrade: TLS/1.2", b"Connection: upgrade"),
    "nothing": (b"Connection: Upgrade", b"Upgrade: "),
    "two": (b"Connection: Upgrade", b"Upgrade: h2c, websocket", b"Upgrade: x", KEY),
}
TUNNEL = post(0, method=b"CONNECT", body=HIDING)
BAD_CHUNK = head(b"Transfer-Encoding: chunked") + b'8\r\n{"x": 9}0\r\n\r\n'
ENDLESS = b"[" * 500_001 + b'"' + b'\\"' * 1_000_000
OVER = post(0, is_chunked=True, body=LARGE * 2)
GARBAGE = b"\x00\x01 no HTTP\r\n\r\n" + INNER

# Chunks that end before INNER, in a body that by its length ends after it.
REST = b'{"x": 4}\r\n0\r\n\r\n' + INNER
CHUNKS = b"8\r\n" + REST
LONG, CODED = b"Content-Length: %d" % len(CHUNKS), b"Transfer-Encoding: "
CHUNKED = CODED + b"chunked"
# Requests that two parsers of HTTP end at different bytes.
SMUGGLED = {
    "Expect": head(b"Expect: x", b"Content-Length: %d" % len(INNER)) + INNER,
    "two expectations": head(b"Expect: 100-continue, x", b"Content-Length: %d" % len(INNER)) + INNER,
    "CVE-2021-43797, a control character in a name": head(LONG, b"\x0b" + CHUNKED) + CHUNKS,
    "CVE-2025-58056, a line feed in an extension": head(CHUNKED) + b"8;\n" + REST,
    "CVE-2026-33870, a quoted extension": head(CHUNKED) + b'8;a="\r\n' + REST,
    "CVE-2026-42580, a chunk of 4 GiB and 8 bytes": head(CHUNKED) + b"100000008\r\n" + REST,
    "CVE-2026-42581, both lengths in HTTP/1.0": head(LONG, CHUNKED, version=b"HTTP/1.0") + CHUNKS,
    "CVE-2026-42585, a coding behind chunked": head(LONG, CHUNKED + b", identity") + CHUNKS,
    "CVE-2026-89044, a coding named xchunked": head(LONG, CHUNKED + b", xchunked") + CHUNKS,
    "both lengths": head(LONG, CHUNKED) + CHUNKS,
    "two codings": head(LONG, CHUNKED, CODED + b"identity") + CHUNKS,
    "a folded coding": head(LONG, CODED + b"\r\n chunked") + CHUNKS,
    "a coding with a control character": head(CODED + b"\x0bchunked", LONG) + CHUNKS,
    "a space before the colon": head(LONG, b"Transfer-Encoding : chunked") + CHUNKS,
    "two lengths": head(b"Content-Length: 0", LONG) + CHUNKS,
    "a list of lengths": head(b"Content-Length: 8, %d" % len(HIDING)) + HIDING,
    "a length with a sign": head(b"Content-Length: +5") + CHUNKS,
    "a length of 2**64": head(b"Content-Length: 18446744073709551624") + CHUNKS,
    "a negative length": head(b"Content-Length: -1") + CHUNKS,
    "a chunk with a sign": head(CHUNKED) + b"+8\r\n" + REST,
    "a chunk of 2**64 and 8 bytes": head(CHUNKED) + b"10000000000000008\r\n" + REST,
    "a chunk that ends in CR": head(CHUNKED) + b'8\r{"x": 4}\r0\r\r' + INNER,
    "trailers with a length": head(CHUNKED, b"Trailer: Expect")
    + REST.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\nExpect: x\r\n\r\n", 1),
}
# Heads that are wrong or odd: at most one answer, and nothing of it runs as another request.
ODD = {
    "HTTP/0.9": b"GET /ping\r\n\r\n",
    "a line of HTTP/2": head(method=b"GET", path=b"/ping", version=b"HTTP/2.0"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a hello of TLS": bytes.fromhex("1603010200010001fc0303") + bytes(500),
    "no host": b"GET /ping HTTP/1.1\r\n\r\n",
    "two hosts": head(b"Host: b", method=b"GET", path=b"/ping"),
    "NUL in a header": head(b"X: a\0b", method=b"GET", path=b"/ping"),
    "CR in a header": head(b"X: a\rY: b", method=b"GET", path=b"/ping"),
    "LF in place of CRLF": b"GET /ping HTTP/1.1\nHost: a\n\n",
    "a path with CRLF, escaped": head(method=b"GET", path=b"/models/%00%0d%0aSet-Cookie:%20x"),
    "a path that leaves the root": head(method=b"GET", path=b"/../../etc/passwd"),
    "a path that is no UTF-8": head(method=b"GET", path=b"/models/%ff%fe"),
    "a URL without a path": head(method=b"GET", path=b"http://evil"),
    "OPTIONS *": head(method=b"OPTIONS", path=b"*"),
    "TRACE": head(method=b"TRACE", path=b"/"),
}
LARGE_HEADS = {
    "20 KB of a header": head(b"X: " + b"a" * 20_000, b"Content-Length: 0"),
    "20 KB of a path": head(b"Content-Length: 0", path=PATH + b"?" + b"a" * 20_000),
    "3,000 headers": head(*[b"a:"] * 3000, b"Content-Length: 0"),
    "10 MB of a header": head(b"X: " + b"a" * 10_000_000, b"Content-Length: 0"),
}
# Path of a request -> its statuses.
WRONG = {
    (b"POST", PATH + b"/7"): "404",
    (b"POST", b"/v2/models/nobody/infer"): "404",
    (b"DELETE", PATH): "404|405",
    (b"DELETE", b"/models/double"): "404|405",
    (b"DELETE", b"/v2/models/double"): "404|405",
    (b"POST", b"/models?url=http://127.0.0.1:1/x.mar"): "404|405",
}


# Status of handlers.protocol.statuses -> a request that provokes it by HTTP, and a message by gRPC. Other rows have
# further statuses.
PROVOKED = {
    400: (post(0, body=b'{"x": '), b"\xff" * 100),
    404: (post(1, path=b"/predictions/nobody"), b"\x0a\x06nobody"),
    409: (post(0, b"X-Vector-Space: another"), asking(0)),
    413: (post(0, body=LARGE * 2), bytes(40 << 20)),
    500: (post(500), asking(500)),
    507: (post(507), asking(507)),
}
SENT = {409: (("x-vector-space", "another"),)}  # metadata of gRPC
CODES = {code.value[0]: code.name for code in grpc.StatusCode}

SMALL, CODING = b'{"x": 4}', b"Content-Encoding: "
ENDLESSLY = post(0, CODING + b"gzip", is_chunked=True, body=gzip.compress(LARGE, 9))[:-5]
INFLATING = post(0, CODING + b"gzip", body=gzip.compress(LARGE, 9))
GZIP, ZLIB = gzip.compress(SMALL), zlib.compress(SMALL)
# Content-Encoding, body, status.
CODINGS = {
    "gzip": (b"gzip", GZIP, "200"),
    "deflate": (b"deflate", ZLIB, "200"),
    "gzip that is cut": (b"gzip", GZIP[:-4], "400"),
    "gzip with another sum": (b"gzip", GZIP[:-8] + b"sums" + GZIP[-4:], "400"),
    "deflate that is cut": (b"deflate", ZLIB[:-4], "400"),
    "deflate with another sum": (b"deflate", ZLIB[:-4] + b"sums", "400"),
    "deflate without zlib's head": (b"deflate", ZLIB[2:], "400"),
    "gzip in name only": (b"gzip", SMALL, "400|415"),
    "an unknown coding": (b"x", SMALL, "415"),
    "100 MB as 100 KB of gzip": (b"gzip", gzip.compress(b'{"x": 3}'.ljust(100_000_000), 9), "413"),
}

# The bytes of a client that then is silent, and the status before the end of its connection.
STOPPED = {
    "a connection": (b"", "408?"),
    "a head": (post(4)[:40], "408?"),
    "a body": (post(4)[:-2], "408"),
    "a chunk": (post(4, is_chunked=True)[:-9], "408"),
    "a body of a terabyte": (head(b"Content-Length: 1000000000000"), "408|413?"),
    "a trailer": (head(CHUNKED) + b'8\r\n{"x": 4}\r\n0\r\nA: ' + b"x" * 20_000, "4..?"),
    "a chunk's extension": (head(CHUNKED) + b"8;" + b"x" * 20_000, "4..?"),
}

HTTP: tuple[Row, ...] = (
    Talk("a request", post(4), "200", answers=(4,), is_split=True),
    Talk(
        "three requests in one packet", post(1) + post(2, is_chunked=True) + post(3), "200 200 200", answers=(1, 2, 3)
    ),
    *(
        Talk(
            f"an upgrade to {name}, {framing}",
            post(4, *lines, is_chunked=is_chunked),
            "200",
            answers=(4,),
            is_split=True,
        )
        for name, lines in UPGRADES.items()
        for framing, is_chunked in (("chunked", True), ("with a length", False))
    ),
    Talk("an upgrade that hides a request", post(0, *UPGRADES["websocket"], body=HIDING), "400", is_split=True),
    Talk("two upgrades in a row", post(4, *UPGRADES["nothing"]) * 2, "200 200", answers=(4, 4)),
    Talk("CONNECT that hides a request", TUNNEL, "400|404|405|501", "end", is_split=True),
    Talk("CONNECT behind a request", post(4) + post(0, method=b"CONNECT"), "200 400|404|405|501?", "end", (4,)),
    Talk("bytes that are no HTTP", GARBAGE, "400", "end"),
    Talk("bytes that are no HTTP behind a request", post(4) + GARBAGE, "200 400?", "end", (4,)),
    Talk("a broken chunk", BAD_CHUNK + INNER, "400", "end"),
    Talk("a broken chunk behind a request", post(4) + BAD_CHUNK + INNER, "200 400", "end", (4,)),
    # A proxy may see the chunk before the limit is reached behind it.
    Talk("a broken chunk of a body over the limit", OVER[:-7] + b"x\r\n" + INNER, "400|413", "end"),
    *(Talk(f"two ends of one request: {name}", sent, "200|4..|501?", "last end") for name, sent in SMUGGLED.items()),
    Talk("two ends of one request: CVE-2026-50020, control characters in front", b"\0\1\x7f" + INNER, "400?", "end"),
    *(Talk(f"an odd head: {name}", sent, "200|4..|501|505?", "last end") for name, sent in ODD.items()),
    *(
        Talk(f"a large head: {name}", sent, "400|413|414|431?", "last end", memory_mib=50)
        for name, sent in LARGE_HEADS.items()
    ),
    *(
        Talk(f"{method.decode()} {path.decode()}", post(1, method=method, path=path), status, "last end")
        for (method, path), status in WRONG.items()
    ),
    *(
        Talk(f"a packed body: {name}", post(0, CODING + coding, body=body), sees, "last end", is_split=sees == "200")
        for name, (coding, body, sees) in CODINGS.items()
    ),
    *(Talk(f"a status: {status}", sent, str(status), "last end") for status, (sent, _) in PROVOKED.items()),
    Talk("20 bodies over the limit", post(0, body=LARGE * 6), "413", "last end", connections=20, memory_mib=300),
    Talk("lists, and a text without an end", post(0, body=ENDLESS), "400|413", "last end"),
    Talk("100 bodies of 6 KB that inflate to 6 MB", INFLATING, "200|503", connections=100, memory_mib=300),
    Talk("100 bodies of 6 MB", post(0, body=LARGE), "200|503", connections=100, memory_mib=300),
    Talk(
        "100 bodies that inflate to 6 MB and do not end",
        ENDLESSLY,
        "408|413|503?",
        waits=True,
        connections=100,
        memory_mib=300,
    ),
    Together("clients that do not go on", tuple(Talk(name, *case, waits=True) for name, case in STOPPED.items())),
    Holds("idle connections that have sent nothing", b""),
    Holds("idle connections that have been answered", post(4)),
    Holds("connections with half a head", post(4)[:40]),
    Holds("connections with half a body", post(4)[:-2]),
)
# Rows of many connections, which take a door minutes.
HEAVY = [row for row in HTTP if isinstance(row, Holds | Together) or (isinstance(row, Talk) and row.connections > 1)]
LIGHT = [row for row in HTTP if row not in HEAVY]
# The gateway has TLS in front of the same Envoy: it changes how bytes come, not what they mean.
OVER_TLS = [row for row in LIGHT if re.match("a request|three|a broken|.*behind|two ends.* two", row.name)]

TRUNCATED = b"\0" + LARGE_BYTES.to_bytes(4) + bytes(LARGE_BYTES - 1)
BLOCK, LINES = call(1)[9:], line(b"x", b"y" * 100) * 100
CANCEL = struct.pack(">I", 8)
RESETS = b"".join(
    frame(HEADERS, END_HEADERS, each, BLOCK) + frame(RESET, 0, each, CANCEL) for each in range(1, 40_001, 2)
)
SERVICE = INFER.decode().removesuffix("ModelInfer")
GRPC: tuple[Row, ...] = (
    Calls("1,100 calls without a message on one connection", 1100, 1),
    Calls("1,100 calls without a message on eleven connections", 100, 11),
    Calls("60 messages of 6 MB that lack a byte", 1, 60, TRUNCATED, memory_mib=200),
    Frames("20,000 calls that are reset at once", RESETS),
    Frames("continuations without an end", frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1, LINES) * 2000),
    Frames("pings without an end", frame(PING, 0, 0, bytes(8)) * 200_000),
    Frames("settings without an end", frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)) * 200_000),
    Frames("empty pieces of a message without an end", call(1) + frame(DATA, 0, 1) * 200_000),
    Asks(
        "1 MB of metadata", b"", "RESOURCE_EXHAUSTED|INTERNAL|UNAVAILABLE|UNKNOWN", metadata=(("x", "a" * 1_000_000),)
    ),
    *(
        Asks(f"a status: {status}, by gRPC", message, CODES[meaning_of(status).grpc], metadata=SENT.get(status, ()))
        for status, (_, message) in PROVOKED.items()
    ),
    Asks("an unknown method", b"", "UNIMPLEMENTED", SERVICE + "Nothing"),
    Asks("another service", b"", "UNIMPLEMENTED", "/a.B/C"),
    Asks("100 MB as 100 KB of gzip, by gRPC", bytes(100 << 20), "RESOURCE_EXHAUSTED", is_packed=True),
)
