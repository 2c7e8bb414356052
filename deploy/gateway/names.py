"""Names of models and versions that a route can contain."""

import re

# Percent-encoded, three times as many bytes fit into the 4,096 that Netty reads of a request line.
NAME_BYTES = 1024
# Proxies treat a backslash as a slash.
UNUSABLE = re.compile(r"[/\\\x00-\x1f\x7f]")


def fault(name: str) -> str | None:
    """Return why no URL can contain a name; None if one can."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "contains an invalid Unicode code point"
    if not 0 < size <= NAME_BYTES:
        return f"must have 1 to {NAME_BYTES} bytes in UTF-8"
    if name in (".", "..") or UNUSABLE.search(name):
        return "must not be a dot or two, or contain a slash, a backslash or a control character"
    return None
