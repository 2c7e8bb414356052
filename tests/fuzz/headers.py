"""Headers of requests: those that mean something here, with values that clients send and values that nobody should."""

from tests.fuzz.values import CANARY, NUMBERS, Draw

PRIORITIES = ("1", "2", "3", "0", "4", "-1", "01", "1.0", " 1", "", "first", "١", "9" * 9, "9" * 10, "9" * 5000, CANARY)
# A request may say that it does not wait; most say that they do.
TIMEOUTS_MS = (
    "60000",
    "60000.5",
    "1e5",
    "1e999",
    "nan",
    "inf",
    "-1",
    "0",
    "-0.0",
    "",
    "soon",
    "1_0000000",
    "9" * 400,
    CANARY,
)
SHORT_TIMEOUTS_MS = ("1", "0.001", "1e-300", "5e-324", "20")
ENCODINGS = ("identity", "gzip", "deflate", "br", "", "IDENTITY", "identity, gzip", CANARY)
CONTENT_TYPES = (
    *(
        "",
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=latin-1",
        "APPLICATION/JSON",
    ),
    *("application/octet-stream", "text/plain", "text/plain; charset=utf-8", "text/html", "text/", "image/jpeg"),
    *("application/json, text/plain", "application/ld+json", "application/x-json", ";", "/", f"x/{CANARY}", "json"),
)
OTHERS = (
    ("Accept", "*/*"),
    ("Accept", "image/png;q=0.1, text/html"),
    ("Accept-Encoding", "gzip, deflate, br"),
    ("X-Request-Id", CANARY),
    ("Cookie", f"{CANARY}={CANARY}"),
    ("body", "text"),
    ("data", "text"),
    ("explain", "True"),
    ("ts_stream_next", "true"),
    ("X-Forwarded-For", "127.0.0.1, ::1"),
    ("Range", "bytes=0-0"),
    ("If-Match", '"x"'),
    ("Accept-Language", "\u00e9" * 100),
    ("X-Long", "x" * 4000),
)


def headers(draw: Draw, *, size: int) -> tuple[dict[str, str], bool]:
    """Draw some headers for a body of so many bytes; and whether they ask for so little time that 504 may come."""
    drawn: dict[str, str] = {}
    may_time_out = False
    if draw.often(0.15):
        drawn[draw.one("X-Priority", "x-priority", "X-PRIORITY")] = draw.choice(PRIORITIES)
    if draw.often(0.15):
        may_time_out = draw.often(0.3)
        drawn[draw.one("X-Timeout-Ms", "x-timeout-ms")] = draw.choice(
            SHORT_TIMEOUTS_MS if may_time_out else TIMEOUTS_MS
        )
    if draw.often(0.03):
        drawn["Content-Encoding"] = draw.choice(ENCODINGS)
    if draw.often(0.04):
        drawn["Inference-Header-Content-Length"] = draw.one(str(draw.randint(0, size + 1)), *NUMBERS, "", " 5", CANARY)
    if draw.often(0.1):
        drawn |= [draw.choice(OTHERS)]
    return drawn, may_time_out
