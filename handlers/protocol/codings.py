"""Content-Encoding of bodies, for servers without a gateway in front, which inflates bodies by the same rules. Pure."""

import zlib

from handlers.errors import BodyTooLarge, MalformedMessage, UnsupportedMedia

UNSUPPORTED = "Content-Encoding: a compressed body is not supported; send it uncompressed."
GZIP, ZLIB, RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS  # zlib's numbers of formats, any window


def codings_of(header: str) -> list[str]:
    """Return the codings of a Content-Encoding but `identity`: RFC 9110, 8.4, names without regard to case."""
    names = [name.strip().lower().removeprefix("x-") for name in header.split(",")]
    return [name for name in names if name not in ("", "identity")]


def inflate(body: bytes, header: str, max_bytes: int) -> bytes:
    """Return a body as it was before its Content-Encoding, of at most `max_bytes`; InvalidInput if it is damaged."""
    codings = codings_of(header)
    if not codings:
        return body
    if codings not in (["gzip"], ["deflate"]):
        raise UnsupportedMedia(UNSUPPORTED)
    if codings == ["gzip"] and body[:2] != b"\x1f\x8b":
        raise UnsupportedMedia("Content-Encoding: the body is not compressed as gzip.")
    # Some clients send deflate's bare stream instead of zlib's format.
    is_zlib = len(body) > 1 and body[0] % 16 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    decompressor = zlib.decompressobj(GZIP if codings == ["gzip"] else ZLIB if is_zlib else RAW)
    try:
        inflated = decompressor.decompress(body, max_bytes + 1)
    except zlib.error:
        raise MalformedMessage("Content-Encoding: the body is not valid gzip or deflate.") from None
    if len(inflated) > max_bytes:
        raise BodyTooLarge(f"The body has more bytes than max_body_bytes, {max_bytes}, once it is decompressed.")
    if not decompressor.eof or decompressor.unused_data or not inflated:
        raise MalformedMessage("Content-Encoding: the compressed body is cut short or empty, or more bytes follow it.")
    return inflated
