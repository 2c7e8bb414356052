"""The doors that cannot keep rows, why, and which: SECURITY.md has each of these sentences.

A door fails what it lacks, or the sentence is no longer true; a row that would hold it without end is not played.
"""

import re

from tests.doors.kinds import Holds, Row, Together

SMUGGLING = "two ends of one request: "
Lacks = dict[str, tuple[str, ...]]  # why -> patterns of the names of rows
EXTENSION: Lacks = {
    "ignores a malformed extension of a chunk up to the end of its line": (SMUGGLING + "CVE-2026-33870.*",),
}
LACKS: dict[str, Lacks] = {
    "gateway": {
        **EXTENSION,
        "limit connections per client: the limit is for all clients together": (
            ".*onnections (that have|with half).*",
        ),
    },
    "Ray Serve": EXTENSION,
    "TorchServe": {
        "A request after an unknown `Expect` is read from the body of that request": (
            SMUGGLING + "Expect",
            SMUGGLING + "two expectations",
        ),
        "Its HTTP library, Netty, is from 2020": (
            SMUGGLING + r"CVE-(?!2026-42580).*",
            SMUGGLING + "(both lengths|two codings|a folded coding|a chunk with a sign)",
        ),
        "Responses to pipelined requests come in the order in which they are ready": (".* behind a request",),
        "TorchServe resets the connection after a response of status 400 or more": ("an upgrade that hides a request",),
        "`OPTIONS *` and other paths without a slash return 500": ("an odd head: (the preface of HTTP/2|OPTIONS .)",),
        "Any method on a prediction route runs a prediction, GET too": ("DELETE /predictions/double",),
        "Compressed bodies are rejected with 415": (
            "a packed body: (?!gzip in name only|an unknown coding).*",
            "100 bodies of 6 KB that inflate to 6 MB",
        ),
        "No idle, read or write timeout and no limit of connections": (
            "clients that do not go on",
            ".* and do not end",
        ),
    },
}


def why_lacking(row: Row, door: str) -> str | None:
    """Return the reason for which a door cannot keep a row."""
    reasons = LACKS.get(door, {}).items()
    return next((why for why, names in reasons if any(re.fullmatch(name, row.name) for name in names)), None)


def is_endless(row: Row) -> bool:
    """Return whether a door that lacks the row may hold its client, or memory, without end."""
    return row.memory_mib is not None or isinstance(row, Holds | Together)
