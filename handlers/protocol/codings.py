"""Compressed bodies and messages, inflated up to a limit; a gateway inflates bodies by the same rules. Pure."""

import zlib

from handlers.errors import BodyTooLarge, MalformedMessage, UnsupportedMedia

UNSUPPORTED = "Content-Encoding: a compressed body is not supported; send it uncompressed."
# The first bytes of gzip, and of zlib at its levels; no message begins with them.
HEADS = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
ANY = 32 + zlib.MAX_WBITS  # zlib's number for gzip or zlib, whichever the head states
KINDS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # coding -> zlib's number of its format, any window


def codings_of(header: str) -> list[str]:
    """Return the codings of a Content-Encoding but `identity`: RFC 9110, 8.4, names without regard to case."""
    names = [name.strip().lower().removeprefix("x-") for name in header.split(",")]
    return [name for name in names if name not in ("", "identity")]


def inflate(body: bytes, header: str, max_bytes: int) -> bytes:
    """Return a body as it was before its Content-Encoding, of at most `max_bytes`; InvalidInput if it is damaged."""
    codings = codings_of(header)
    if not codings:
        return body
    if len(codings) > 1 or (kind := KINDS.get(codings[0])) is None:
        raise UnsupportedMedia(UNSUPPORTED)
    damaged = "Content-Encoding: the body is not valid gzip or deflate."
    cut = "Content-Encoding: the compressed body is cut short or empty, or more bytes follow it."
    inflated = _expand(body, kind, max_bytes, noun="body", damaged=damaged, cut=cut)
    if not inflated:
        raise MalformedMessage(cut)
    return inflated


def decompress(message: bytes | bytearray, max_bytes: int) -> bytes | bytearray:
    """Inflate a message that begins like gzip or zlib, as gRPC's clients send it; return others unchanged."""
    if not message.startswith(HEADS):
        return message
    damaged = "The message is not valid gzip or zlib."
    cut = "The compressed message is cut short, or more bytes follow it."
    inflated = _expand(message, ANY, max_bytes, noun="message", damaged=damaged, cut=cut)
    if inflated.startswith(HEADS):
        raise MalformedMessage("The message is compressed twice.")
    return inflated


def _expand(packed: bytes | bytearray, kind: int, max_bytes: int, *, noun: str, damaged: str, cut: str) -> bytes:
    decompressor = zlib.decompressobj(kind)
    try:
        inflated = decompressor.decompress(packed, max_bytes + 1)
    except zlib.error:
        raise MalformedMessage(damaged) from None
    if len(inflated) > max_bytes:
        raise BodyTooLarge(f"The {noun} has more bytes than max_body_bytes, {max_bytes}, once it is decompressed.")
    if not decompressor.eof or decompressor.unused_data:
        raise MalformedMessage(cut)
    return inflated
