"""A module that the task imports."""

import re


def parse_hex(text: str) -> list[int]:
    """Return red, green and blue of "#rrggbb"."""
    if not re.fullmatch("#[0-9a-fA-F]{6}", text):
        raise ValueError("must be #rrggbb")
    return [*bytes.fromhex(text[1:])]
